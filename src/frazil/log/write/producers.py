"""A log's state of its producers. It is derived from the stored batches, so it is as durable as they are.

Each frame says which of its rows came from a producer with sequences; the head of each segment carries the whole table
as of the segment's start. So the last segment is enough to restore it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from frazil.core.errors import InvalidInput
from frazil.core.sequences import NUMBER_MAX, PRODUCERS_MAX, RECENT_MAX, ProducerState, Sent, check_producer

GENERATION_BITS = 32
"""A forgotten name that is taken again starts a new generation, in the upper bits of the epoch."""

EPOCHS_UNSEEN = 1 << 20
"""More takeovers than a name can have had since it last wrote a row."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class SentRows(NamedTuple):
    """Rows of a frame that came from one producer as one batch; `row` counts from the frame's first."""

    row: int
    rows: int
    sent: Sent


class ProducersRecord(NamedTuple):
    """The producers in a topic's record."""

    epochs: Mapping[str, int]
    """Epochs of names that were taken."""
    clients: Mapping[str, str]
    """The ids of the clients that opened these epochs."""
    floor: int


class BadProducers(Exception):
    """The description of producers is invalid; the message says why."""


class Producers:
    """The producers of one log, least recently written first. Not thread-safe: its log guards it."""

    __slots__ = ("_states", "floor")

    def __init__(self, states: Mapping[str, ProducerState] | None = None, floor: int = 0) -> None:
        self._states: dict[str, ProducerState] = dict(states or {})
        self.floor = floor
        """Above the epoch of every forgotten producer, so that a late batch of one is never treated as new."""

    def __len__(self) -> int:
        return len(self._states)

    def get(self, name: str) -> ProducerState | None:
        return self._states.get(name)

    def all(self) -> dict[str, ProducerState]:
        return dict(self._states)

    def epochs(self) -> dict[str, int]:
        return {name: state.epoch for name, state in self._states.items()}

    def record(self) -> ProducersRecord:
        clients = {name: state.client for name, state in self._states.items() if state.client is not None}
        return ProducersRecord(self.epochs(), clients, self.floor)

    def store(self, sent: Sent, rows: int, first_offset: int) -> None:
        """Record a stored batch. Only batches of the current epoch are kept: an epoch belongs to one client."""
        after = sent.sequence + rows
        state = self._states.get(sent.producer)
        if state is None or sent.epoch > state.epoch:
            self._put(sent.producer, ProducerState(sent.epoch, after, ((sent.sequence, first_offset, rows),)))
        elif sent.epoch < state.epoch:  # it was in flight when another client took the name
            self._put(sent.producer, replace(state, next_sequence=after, recent=()))
        else:
            before = () if state.next_sequence != sent.sequence else state.recent[1 - RECENT_MAX :]
            recent = (*before, (sent.sequence, first_offset, rows))
            self._put(sent.producer, replace(state, next_sequence=after, recent=recent))

    def replay(self, sent: Sent, rows: int, first_offset: int) -> None:
        """Record a batch read from a file: only a producer that was forgotten meanwhile may start over."""
        state = self._states.get(sent.producer)
        if state is not None and sent.sequence != state.next_sequence and sent.epoch <= state.epoch:
            raise BadProducers(
                f"sequence {sent.sequence} of {sent.producer!r} stands where {state.next_sequence} belongs"
            )
        self.store(sent, rows, first_offset)

    def open(self, name: str, client: str | None = None, stream: int = 0) -> ProducerState:
        """Assign the name to a client: older epochs are refused from now on, and their batches match nothing."""
        state = self._states.get(name)
        if state is None:
            return self._put(name, ProducerState(self.floor, 0, (), client, stream))
        return self._put(name, ProducerState(state.epoch + 1, state.next_sequence, (), client, stream))

    def resume(self, name: str, stream: int) -> ProducerState:
        """Continue the same client on another connection: batches of the older one are refused."""
        return self._put(name, replace(self._states[name], stream=stream))

    def restore(self, name: str, epoch: int, next_sequence: int) -> None:
        """Restore a producer that was forgotten while its batches were in flight."""
        self._put(name, ProducerState(max(epoch, self.floor), next_sequence))

    def raise_epoch(self, name: str, epoch: int) -> None:
        """Raise the epoch for a batch in flight: the next client of the name gets a higher one."""
        state = self._states[name]
        if epoch > state.epoch:
            self._states[name] = ProducerState(epoch, state.next_sequence)

    def learn(self, record: ProducersRecord) -> None:
        """Apply the names taken according to the topic's record, on top of the segments.

        All of them were known when the floor was recorded. If the floor is higher now, rows of others have evicted
        producers since; a producer with an epoch below it was evicted, and stays forgotten.
        """
        epochs, clients, floor = record
        none_forgotten_since = self.floor <= floor
        for name, epoch in epochs.items():
            state = self._states.get(name)
            if state is not None and epoch >> GENERATION_BITS <= state.epoch >> GENERATION_BITS:
                if epoch > state.epoch:
                    state = ProducerState(epoch, state.next_sequence, (), clients.get(name))
                elif epoch == state.epoch:
                    state = replace(state, client=clients.get(name))
                self._states[name] = state  # without reordering: the segments determine when it wrote last
            elif none_forgotten_since or epoch >= self.floor:
                self._put(name, ProducerState(epoch, 0, (), clients.get(name)))
            else:
                self._states.pop(name, None)
        self.floor = max(self.floor, floor)

    def _put(self, name: str, state: ProducerState) -> ProducerState:
        self._states.pop(name, None)
        self._states[name] = state
        while len(self._states) > PRODUCERS_MAX:
            gone = self._states.pop(next(iter(self._states)))
            self.floor = max(self.floor, next_generation(gone.epoch))
        return state

    # --- in the head of a segment

    def as_text(self) -> bytes:
        """Encode the table. Batches of a producer are consecutive, so that their sequences need not be stored.

        `own` means that the entries belong to the producer's epoch only; older tables had entries of older epochs too.
        """
        if not self._states and not self.floor:
            return b""
        entries = [
            [name, state.epoch, state.next_sequence, [place for _, *batch in state.recent for place in batch]]
            for name, state in self._states.items()
        ]
        return _text({"floor": self.floor, "producers": entries, "own": True})

    @classmethod
    def from_text(cls, text: bytes, end: int) -> Producers:
        """Decode the table; `end` is the offset after all rows that it may describe."""
        try:
            content = _parsed(text)
            floor, entries = content["floor"], content["producers"]
            if len(entries) > PRODUCERS_MAX:
                raise BadProducers(f"{len(entries)} producers are more than {PRODUCERS_MAX}")
            states = {name: _state(name, epoch, after, places, end) for name, epoch, after, places in entries}
            if len(states) != len(entries):
                raise BadProducers("a producer is there twice")
            if content.get("own") is not True:  # the epoch of each entry is unknown: none may match
                states = {name: replace(state, recent=()) for name, state in states.items()}
            return cls(states, _number("floor", floor))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, InvalidInput) as error:
            raise BadProducers(f"the table of producers is not valid ({error})") from None


def next_generation(epoch: int) -> int:
    return (epoch >> GENERATION_BITS) + 1 << GENERATION_BITS


def above_unseen(epoch: int) -> int:
    """Return an epoch above every one that the name may have got since: clients with those are refused."""
    raised = epoch + EPOCHS_UNSEEN
    half = GENERATION_BITS - 1
    return raised if raised >> half == epoch >> half else next_generation(epoch)


def sent_as_text(sent_rows: Sequence[SentRows]) -> bytes:
    """Encode a frame's producers."""
    return _text([[row, rows, sent.producer, sent.epoch, sent.sequence] for row, rows, sent in sent_rows])


def sent_from_text(text: bytes, rows_max: int) -> list[SentRows]:
    """Decode a frame's producers; `rows_max` is the number of rows in the frame."""
    found: list[SentRows] = []
    free_from = 0
    try:
        for row, rows, producer, epoch, sequence in _parsed(text):
            if _number("row", row) < free_from or _number("rows", rows) < 1 or row + rows > rows_max:
                raise BadProducers(f"{rows} rows at {row} do not fit among {rows_max}")
            found.append(SentRows(row, rows, Sent(producer, epoch, sequence)))
            _number("sequence", sequence + rows)
            free_from = row + rows
    except (TypeError, ValueError, InvalidInput) as error:
        raise BadProducers(f"what it says of producers is not valid ({error})") from None
    return found


def _state(name: Any, epoch: Any, next_sequence: Any, places: Any, end: int) -> ProducerState:
    check_producer(name)
    firsts, counts = places[::2], places[1::2]
    if len(firsts) != len(counts) or len(firsts) > RECENT_MAX:
        raise BadProducers(f"{name!r} has {len(places)} places of batches")
    recent: list[tuple[int, int, int]] = []
    sequence, free_from = _number("next_sequence", next_sequence) - sum(counts), 0
    for first, rows in zip(firsts, counts, strict=True):
        if _number("first offset", first) < free_from or _number("rows", rows) < 1 or first + rows > end:
            raise BadProducers(f"{name!r} has {rows} rows at offset {first}, where they cannot be")
        recent.append((_number("sequence", sequence), first, rows))
        sequence, free_from = sequence + rows, first + rows
    return ProducerState(_number("epoch", epoch), next_sequence, tuple(recent))


def _number(what: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= NUMBER_MAX:
        raise BadProducers(f"{what} is no number from 0 up to 2^63 - 1")
    return value


def _text(value: Any) -> bytes:
    return _ENCODER.encode(value).encode()


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise BadProducers("it is nested too deep") from None
