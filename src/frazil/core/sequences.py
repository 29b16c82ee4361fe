"""Producers that number their rows, so that a batch sent twice is stored once.

A client that lost an answer cannot know whether its batch was stored. It sends the batch again under the same
number, and the log answers with the offsets of the first time.

A batch is known by its identity: producer, epoch and sequence. An epoch belongs to one client, which is known by an id
of its own making. So a batch is never answered with the offsets of another client's batch.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from frazil.core.errors import InvalidInput

PRODUCERS_MAX = 1_000
"""So many producers are remembered for each topic; the one that wrote longest ago goes first."""

RECENT_MAX = 64
"""So many batches are remembered of each producer."""

NAME_CHARACTERS_MAX = 255
CLIENT_CHARACTERS_MAX = 64
NO_EPOCH = -1
"""What `Opening.seen` says of a name that nobody has."""
NUMBER_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Sent:
    """Who sends a batch, and which of its rows the batch begins with.

    `epoch` grows each time another client takes the name. `sequence` counts the producer's own rows, from 0.
    """

    producer: str
    epoch: int
    sequence: int
    stream: int | None = field(default=None, compare=False, repr=False)
    """Of a client over the network: the connection by which it sends. What a cut one still delivers is refused."""

    def __post_init__(self) -> None:
        check_producer(self.producer)
        _check_number("epoch", self.epoch)
        _check_number("sequence", self.sequence)


@dataclass(frozen=True, slots=True)
class ProducerState:
    """What a log remembers of one producer."""

    epoch: int
    next_sequence: int
    recent: tuple[tuple[int, int, int], ...] = ()
    """Sequence, first offset and rows of the last batches that were sent under this epoch, oldest first."""
    client: str | None = field(default=None, compare=False)
    """The id of the client that opened this epoch; None if it was never opened, but began with a batch."""
    stream: int = field(default=0, compare=False, repr=False)
    """The client's newest connection; kept in memory alone, for connections end with the process."""


@dataclass(frozen=True, slots=True)
class Opening:
    """Who opens a producer. The same `client` gets its own epoch back; any other one gets the next epoch.

    A client that opens on its own account, after a cut, says which epoch it `held`; one that opens for the first time
    says which epoch it has `seen` when its user asked for it (`NO_EPOCH` for none). If the name has another client by
    then, it is refused. Without both it takes the name from whoever has it.
    """

    client: str
    held: int | None = None
    seen: int | None = None

    def __post_init__(self) -> None:
        check_client(self.client)

    @classmethod
    def of_new_client(cls) -> Opening:
        return cls(new_client_id())


@dataclass(frozen=True, slots=True)
class Opened:
    """What a client learns when it opens a producer."""

    state: ProducerState
    resumed: bool
    """Whether the epoch was this client's before: then the log knows what it has of the client's batches."""


def new_client_id() -> str:
    return uuid.uuid4().hex


def check_client(client: Any) -> None:
    if not isinstance(client, str) or not 1 <= len(client) <= CLIENT_CHARACTERS_MAX or not client.isascii():
        raise InvalidInput(f"client must be an ASCII text of 1 to {CLIENT_CHARACTERS_MAX} characters", field="client")


def check_producer(name: Any) -> None:
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_CHARACTERS_MAX:
        raise InvalidInput(f"producer must be a text of 1 to {NAME_CHARACTERS_MAX} characters", field="producer")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidInput("producer: the text is not valid Unicode", field="producer") from None


def _check_number(field: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= NUMBER_MAX:
        raise InvalidInput(f"{field} must be a whole number from 0 up to 2^63 - 1, not {value!r}", field=field)
