"""Whether a numbered batch is new, sent again, or out of turn; decided before it is queued, so that nothing is undone.

Batches on their way to the disk count as if they were there. If one of them fails, those behind it fail too, and the
producer's next number is that of the failed one again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from frazil.core.errors import InvalidInput, ProducerFenced, SequenceForgotten, SequenceGap
from frazil.core.sequences import NUMBER_MAX, ProducerState, Sent
from frazil.log.group import Part, SentPart
from frazil.log.producers import GENERATION_BITS, Producers, SentRows


class Sequencer:
    """Not thread-safe: its log guards it."""

    __slots__ = ("_topic", "producers", "waiting")

    def __init__(self, topic: str, producers: Producers) -> None:
        self._topic = topic
        self.producers = producers
        self.waiting: dict[str, list[SentPart]] = {}
        """By producer what is on its way to the disk, in the order of its sequences."""

    def original(self, sent: Sent, rows: int) -> SentPart | int | None:
        """None for a batch that is new, which may be queued; else where the same one is: on its way, or its offset."""
        waiting = self.waiting.get(sent.producer, [])
        state = self.producers.get(sent.producer)
        epoch, expected = self._expected(waiting, state)
        if sent.epoch < epoch:
            if state is None and not waiting:
                raise SequenceForgotten(self._topic, sent.producer, sent.sequence, expected)
            raise ProducerFenced(self._topic, sent.producer, sent.epoch, epoch)
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
            if part.sent.sequence == sent.sequence and part.count == rows:
                return part
        for sequence, first_offset, count in state.recent if state else ():
            if sequence == sent.sequence and count == rows:
                return first_offset
        raise SequenceForgotten(self._topic, sent.producer, sent.sequence, expected)

    def _expected(self, waiting: list[SentPart], state: ProducerState | None) -> tuple[int, int]:
        """The least epoch, and the next sequence."""
        epoch, sequence = (self.producers.floor, 0) if state is None else (state.epoch, state.next_sequence)
        if waiting:
            last = waiting[-1]
            epoch = last.sent.epoch if state is None else max(epoch, last.sent.epoch)
            sequence = last.sent.sequence + last.count
        return epoch, sequence

    def queued(self, part: SentPart) -> None:
        self.waiting.setdefault(part.sent.producer, []).append(part)

    def stored(self, group: Iterable[Part], first_offset: int) -> None:
        """A group has become a frame whose first row has that offset."""
        for row, rows, sent in sent_rows(group):
            self.producers.store(sent, rows, first_offset + row)
            self._take_out(sent.producer, slice(0, 1))

    def failed(self, parts: Sequence[Part]) -> list[SentPart]:
        """What waits behind parts that failed, and can no longer follow them."""
        behind: list[SentPart] = []
        for part in parts:
            if isinstance(part, SentPart):
                waiting = self.waiting.get(part.sent.producer, [])
                if part in waiting:
                    at = waiting.index(part)
                    behind += [later for later in waiting[at:] if later not in parts]
                    self._take_out(part.sent.producer, slice(at, None))
        return behind

    def open(self, name: str) -> ProducerState:
        """A client takes the name. What an older one has on its way is stored yet, and told by `waiting`."""
        waiting = self.waiting.get(name)
        if waiting and self.producers.get(name) is None:
            self.producers.restore(name, waiting[-1].sent.epoch, waiting[0].sent.sequence)
        elif waiting:
            self.producers.raise_epochs({name: waiting[-1].sent.epoch})
        return self.producers.open(name)

    def _take_out(self, name: str, which: slice) -> None:
        waiting = self.waiting[name]
        del waiting[which]
        if not waiting:
            del self.waiting[name]


def sent_rows(group: Iterable[Part]) -> Iterator[SentRows]:
    """Which rows of the frame that the group becomes are numbered; parts stand in it in their order."""
    row = 0
    for part in group:
        if isinstance(part, SentPart):
            yield SentRows(row, part.count, part.sent)
        row += part.count
