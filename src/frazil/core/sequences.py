"""Producers that number their rows, so that a batch sent twice is stored once.

A client that lost an answer cannot know whether its batch was stored. It sends the batch again under the same
number, and the log answers with the offsets of the first time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from frazil.core.errors import InvalidInput

PRODUCERS_MAX = 1_000
"""So many producers are remembered for each topic; the one that wrote longest ago goes first."""

RECENT_MAX = 64
"""So many batches are remembered of each producer."""

NAME_CHARACTERS_MAX = 255
NUMBER_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Sent:
    """Who sends a batch, and which of its rows the batch begins with.

    `epoch` grows each time a client takes the name anew. `sequence` counts the producer's own rows, from 0.
    """

    producer: str
    epoch: int
    sequence: int

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
    """Sequence, first offset and rows of its last batches, oldest first."""


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
