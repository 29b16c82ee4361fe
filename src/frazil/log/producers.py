"""What a log remembers of its producers. It follows from the batches that are stored, so it is as durable as they are.

Each frame says which of its rows came from a producer with sequences; the head of each segment carries the whole
table as it was when the segment began. So the last segment alone is enough to know it again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from frazil.core.errors import InvalidInput
from frazil.core.sequences import NUMBER_MAX, PRODUCERS_MAX, RECENT_MAX, ProducerState, Sent, check_producer

GENERATION_BITS = 32
"""A name that was forgotten and is taken again begins a generation: the epoch's upper bits tell the two apart."""

EPOCHS_UNSEEN = 1 << 20
"""More than a name can have been taken since it last wrote a row."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class SentRows(NamedTuple):
    """Rows of a frame that came from one producer as one batch; `row` counts from the frame's first."""

    row: int
    rows: int
    sent: Sent


class ProducersRecord(NamedTuple):
    """What a topic's record says of its producers."""

    epochs: Mapping[str, int]
    """Of names that were taken."""
    clients: Mapping[str, str]
    """The ids of the clients that opened these epochs."""
    floor: int


class BadProducers(Exception):
    """This is no description of producers; the message says why."""


class Producers:
    """The producers of one log, the one that wrote longest ago first. Not thread-safe: its log guards it."""

    __slots__ = ("_states", "floor")

    def __init__(self, states: Mapping[str, ProducerState] | None = None, floor: int = 0) -> None:
        self._states: dict[str, ProducerState] = dict(states or {})
        self.floor = floor
        """Above the epoch of every producer that was forgotten: what one of them sends late is never taken for new."""

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
        """A batch has become part of the log. Only those of the present epoch are remembered: each is one client's."""
        after = sent.sequence + rows
        state = self._states.get(sent.producer)
        if state is None or sent.epoch > state.epoch:
            self._put(sent.producer, ProducerState(sent.epoch, after, ((sent.sequence, first_offset, rows),)))
        elif sent.epoch < state.epoch:  # it was on its way when another client took the name
            self._put(sent.producer, replace(state, next_sequence=after, recent=()))
        else:
            before = () if state.next_sequence != sent.sequence else state.recent[1 - RECENT_MAX :]
            recent = (*before, (sent.sequence, first_offset, rows))
            self._put(sent.producer, replace(state, next_sequence=after, recent=recent))

    def replay(self, sent: Sent, rows: int, first_offset: int) -> None:
        """The same from a file: only a producer that was forgotten meanwhile may have begun anew."""
        state = self._states.get(sent.producer)
        if state is not None and sent.sequence != state.next_sequence and sent.epoch <= state.epoch:
            raise BadProducers(
                f"sequence {sent.sequence} of {sent.producer!r} stands where {state.next_sequence} belongs"
            )
        self.store(sent, rows, first_offset)

    def open(self, name: str, client: str | None = None, stream: int = 0) -> ProducerState:
        """A client takes the name: from now on an older epoch is refused, and its batches match nothing."""
        state = self._states.get(name)
        if state is None:
            return self._put(name, ProducerState(self.floor, 0, (), client, stream))
        return self._put(name, ProducerState(state.epoch + 1, state.next_sequence, (), client, stream))

    def resume(self, name: str, stream: int) -> ProducerState:
        """The client that has the name goes on by another connection: what comes by the older one is refused."""
        return self._put(name, replace(self._states[name], stream=stream))

    def restore(self, name: str, epoch: int, next_sequence: int) -> None:
        """One that was forgotten while batches of it were on their way."""
        self._put(name, ProducerState(max(epoch, self.floor), next_sequence))

    def raise_epoch(self, name: str, epoch: int) -> None:
        """A batch of that epoch is on its way: who takes the name gets a greater one."""
        state = self._states[name]
        if epoch > state.epoch:
            self._states[name] = ProducerState(epoch, state.next_sequence)

    def learn(self, record: ProducersRecord) -> None:
        """What the topic's record says of names that were taken, on top of what the segments say.

        All of them were known when the floor was recorded. If it is higher now, producers were forgotten since by
        rows of others; an epoch below it then was one of those, and stays forgotten.
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
                self._states[name] = state  # in its place: when it wrote last is what the segments say
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
        """Batches of a producer follow one another, so that their sequences need not be told.

        `own` says that the places are of the producer's epoch alone; tables from before that had those of older ones.
        """
        if not self._states and not self.floor:
            return b""
        told = [
            [name, state.epoch, state.next_sequence, [place for _, *batch in state.recent for place in batch]]
            for name, state in self._states.items()
        ]
        return _text({"floor": self.floor, "producers": told, "own": True})

    @classmethod
    def from_text(cls, text: bytes, end: int) -> Producers:
        """`end` is the offset behind all rows that the table may tell of."""
        try:
            content = _parsed(text)
            floor, told = content["floor"], content["producers"]
            if len(told) > PRODUCERS_MAX:
                raise BadProducers(f"{len(told)} producers are more than {PRODUCERS_MAX}")
            states = {name: _state(name, epoch, after, places, end) for name, epoch, after, places in told}
            if len(states) != len(told):
                raise BadProducers("a producer is there twice")
            if content.get("own") is not True:  # of whose epoch each place is can't be told: none may match
                states = {name: replace(state, recent=()) for name, state in states.items()}
            return cls(states, _number("floor", floor))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, InvalidInput) as error:
            raise BadProducers(f"the table of producers is not valid ({error})") from None


def next_generation(epoch: int) -> int:
    return (epoch >> GENERATION_BITS) + 1 << GENERATION_BITS


def above_unseen(epoch: int) -> int:
    """Above every epoch that a name may have got since this one was seen: who has one of those is refused."""
    raised = epoch + EPOCHS_UNSEEN
    half = GENERATION_BITS - 1
    return raised if raised >> half == epoch >> half else next_generation(epoch)


def sent_as_text(sent_rows: Sequence[SentRows]) -> bytes:
    """What a frame says of its producers."""
    return _text([[row, rows, sent.producer, sent.epoch, sent.sequence] for row, rows, sent in sent_rows])


def sent_from_text(text: bytes, rows_max: int) -> list[SentRows]:
    """`rows_max` is how many rows the frame has."""
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
