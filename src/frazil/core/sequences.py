"""Numbered rows of producers, so that a batch sent twice is stored once.

A client that lost an answer cannot know whether its batch was stored. It sends the batch again under the same number,
and the log answers with the offsets of the first time.

A batch is identified by producer, epoch and sequence. An epoch belongs to one client, which is identified by an id that
it generates. So a batch is never answered with the offsets of another client's batch.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from frazil.core.errors import InvalidInput

PRODUCERS_MAX = 1_000
"""Producers remembered per topic; the one with the oldest write is evicted first."""

RECENT_MAX = 64
"""Batches remembered per producer."""

NAME_CHARACTERS_MAX = 255
CLIENT_CHARACTERS_MAX = 64
NO_EPOCH = -1
"""The value of `ProducerOpening.seen` for a name without a client."""
NUMBER_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Sent:
    """The sender of a batch, and the sequence of its first row.

    `epoch` grows each time another client takes the name. `sequence` counts the producer's own rows, from 0.
    """

    producer: str
    epoch: int
    sequence: int
    stream: int | None = field(default=None, compare=False, repr=False)
    """For a network client, the connection that sends. Batches of an older connection are refused."""

    def __post_init__(self) -> None:
        check_producer(self.producer)
        _check_number("epoch", self.epoch)
        _check_number("sequence", self.sequence)


@dataclass(frozen=True, slots=True)
class ProducerState:
    """The state that a log keeps for one producer."""

    epoch: int
    next_sequence: int
    recent: tuple[tuple[int, int, int], ...] = ()
    """Sequence, first offset and rows of the last batches of this epoch, oldest first."""
    client: str | None = field(default=None, compare=False)
    """The id of the client that opened this epoch; None if the epoch began with a batch instead."""
    stream: int = field(default=0, compare=False, repr=False)
    """The client's newest connection; kept in memory only, because connections end with the process."""


@dataclass(frozen=True, slots=True)
class ProducerOpening:
    """A request to open a producer. The same `client` keeps its epoch; another client gets the next epoch.

    A client that reopens after a lost connection passes the epoch it `held`; a client that opens for the first time
    passes the epoch it has `seen` when its user asked for it (`NO_EPOCH` for none). If another client has the name by
    then, the request is refused. Without both, it takes the name over.
    """

    client: str
    held: int | None = None
    seen: int | None = None

    def __post_init__(self) -> None:
        check_client(self.client)

    @classmethod
    def of_new_client(cls) -> ProducerOpening:
        return cls(new_client_id())


@dataclass(frozen=True, slots=True)
class Opened:
    """The answer to opening a producer."""

    state: ProducerState
    resumed: bool
    """Whether the epoch already belonged to this client: then the log knows which of its batches are stored."""


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
