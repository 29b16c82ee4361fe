"""Whether a numbered batch is new, a duplicate, or out of order; decided before it is queued, so that nothing is
undone.

Batches in flight to the disk count as stored. If one of them fails, later ones fail too, and the producer's next
sequence is that of the failed one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from frazil.core.errors import Closed, InvalidInput, ProducerFenced, SequenceForgotten, SequenceGap, TryLater
from frazil.core.sequences import NUMBER_MAX, Opened, ProducerOpening, ProducerState, Sent
from frazil.log.write.group import Part, SentPart
from frazil.log.write.producers import GENERATION_BITS, Producers, ProducersRecord, SentRows


class Sequencer:
    """Not thread-safe: its log guards it."""

    __slots__ = ("_streams", "_topic", "producers", "unrecorded", "waiting")

    def __init__(self, topic: str, producers: Producers) -> None:
        self._topic = topic
        self._streams = itertools.count(1)
        self.producers = producers
        self.waiting: dict[str, list[SentPart]] = {}
        """Batches in flight by producer, in sequence order."""
        self.unrecorded: ProducersRecord | None = None
        """Changes by `open` that are not on the disk yet: to be recorded before the caller is answered."""

    def original(self, sent: Sent, rows: int) -> SentPart | int | None:
        """Return None for a new batch, which may be queued; otherwise the original: in flight, or its offset."""
        waiting = self.waiting.get(sent.producer, [])
        state = self.producers.get(sent.producer)
        epoch, expected = self._expected(waiting, state)
        if sent.epoch < epoch:
            if state is None and not waiting:
                raise SequenceForgotten(self._topic, sent.producer, sent.sequence, expected)
            raise ProducerFenced(self._topic, sent.producer, sent.epoch, epoch)
        if sent.stream is not None and state is not None and sent.stream != state.stream:
            raise self._other_stream(sent.producer)
        if (sent.epoch ^ epoch) >> (GENERATION_BITS - 1):
            raise InvalidInput(
                f"epoch {sent.epoch} was never given out; take the name with open_producer", field="epoch"
            )
        if sent.sequence > expected:
            raise SequenceGap(self._topic, sent.producer, sent.sequence, expected)
        if sent.sequence == expected:
            if sent.sequence + rows > NUMBER_MAX:
                raise InvalidInput("sequence: the batch would count beyond 2^63 - 1", field="sequence")
            return None
        for part in waiting:
            if part.sent == sent and part.count == rows:
                return part
        for sequence, first_offset, count in state.recent if state and state.epoch == sent.epoch else ():
            if sequence == sent.sequence and count == rows:
                return first_offset
        raise SequenceForgotten(self._topic, sent.producer, sent.sequence, expected)

    def _expected(self, waiting: list[SentPart], state: ProducerState | None) -> tuple[int, int]:
        """Return the minimum epoch, and the next sequence."""
        epoch, sequence = (self.producers.floor, 0) if state is None else (state.epoch, state.next_sequence)
        if waiting:
            last = waiting[-1]
            epoch = last.sent.epoch if state is None else max(epoch, last.sent.epoch)
            sequence = last.sent.sequence + last.count
        return epoch, sequence

    def queued(self, part: SentPart) -> None:
        self.waiting.setdefault(part.sent.producer, []).append(part)

    def stored(self, group: Iterable[Part], first_offset: int) -> None:
        """Record that a group became a frame whose first row has that offset."""
        for row, rows, sent in sent_rows(group):
            self.producers.store(sent, rows, first_offset + row)
            self._take_out(sent.producer, slice(0, 1))

    def failed(self, parts: Sequence[Part]) -> list[SentPart]:
        """Return the parts that can no longer be stored, because they follow failed ones."""
        behind: list[SentPart] = []
        for part in parts:
            if isinstance(part, SentPart):
                waiting = self.waiting.get(part.sent.producer, [])
                if part in waiting:
                    at = waiting.index(part)
                    behind += [later for later in waiting[at:] if later not in parts]
                    self._take_out(part.sent.producer, slice(at, None))
        return behind

    def open(self, name: str, opening: ProducerOpening) -> Opened:
        """Open the producer for a client: it keeps its own epoch, takes the next one, or is refused.

        In-flight batches of an older client or connection still commit; see `waiting`.
        """
        state = self.producers.get(name)
        stream = next(self._streams)
        if state is not None and state.client == opening.client:
            return Opened(self.producers.resume(name, stream), resumed=True)
        self._check_free(name, state, opening)
        waiting = self.waiting.get(name)
        if waiting and state is None:
            self.producers.restore(name, waiting[-1].sent.epoch, waiting[0].sent.sequence)
        elif waiting:
            self.producers.raise_epoch(name, waiting[-1].sent.epoch)
        opened = self.producers.open(name, opening.client, stream)
        self.unrecorded = self.producers.record()
        return Opened(opened, resumed=False)

    def _check_free(self, name: str, state: ProducerState | None, opening: ProducerOpening) -> None:
        """Refuse a client that would reclaim a taken name by itself. A name that nobody has taken since is its own: the
        log has only forgotten which client opened it.
        """
        if state is None:
            return
        known, held, seen = state.epoch, opening.held, opening.seen
        if held is not None and (state.client is not None or held != known):
            raise ProducerFenced(self._topic, name, held, known)
        if held is None and seen is not None and seen != known:
            raise ProducerFenced(self._topic, name, seen, known)

    def settled(self, name: str, opened: Opened) -> Opened:
        """Complete the opening once earlier in-flight batches are done; fails if another client has opened the producer
        since.
        """
        before, state = opened.state, self.producers.get(name)
        if state is None:
            raise TryLater(f"producer {name!r} of {self._topic} was forgotten while it was opened; open it again")
        if state.epoch != before.epoch:
            raise ProducerFenced(self._topic, name, before.epoch, state.epoch)
        if state.stream != before.stream:
            raise self._other_stream(name)
        return Opened(state, opened.resumed)

    def _other_stream(self, name: str) -> Closed:
        return Closed(f"an older connection of producer {name!r} to {self._topic}")

    def _take_out(self, name: str, which: slice) -> None:
        waiting = self.waiting[name]
        del waiting[which]
        if not waiting:
            del self.waiting[name]


def sent_rows(group: Iterable[Part]) -> Iterator[SentRows]:
    """Return the numbered rows of the frame that the group becomes, in the order of the parts."""
    row = 0
    for part in group:
        if isinstance(part, SentPart):
            yield SentRows(row, part.count, part.sent)
        row += part.count
