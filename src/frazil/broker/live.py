"""A subscription of a topic without a log: messages go to whoever is there now, and are dropped where it is slow."""

from __future__ import annotations

from frazil.broker.choice import Choice, Kind, choice_of
from frazil.broker.consumer import Consumer, Stream
from frazil.broker.counts import DeliveryCounts
from frazil.broker.entry import Entry

BUFFER_MAX = 100


class LiveSubscription:
    def __init__(self, name: str, kind: Kind) -> None:
        self.name = name
        self.kind = kind
        self.consumers: dict[str, Consumer] = {}
        self.counts = DeliveryCounts()
        self._choice: Choice = choice_of(kind)

    def offer(self, entry: Entry) -> None:
        consumer = self._choice.pick(entry, len(self.consumers))
        if consumer is None or consumer.stream is None or len(consumer.stream) >= BUFFER_MAX:
            self.counts.dropped += 1
        else:
            consumer.stream.put(entry)
            self.counts.deliveries += 1

    def connect(self, consumer: Consumer) -> Stream:
        if consumer.stream is not None:
            consumer.stream.end()
        consumer.stream = Stream()
        self._consumers_changed()
        return consumer.stream

    def disconnect(self, consumer: Consumer, stream: Stream) -> None:
        stream.end()
        if consumer.stream is stream:
            consumer.stream = None
            self._consumers_changed()

    def ack(self, offset: int, epoch: int | None = None) -> None:
        """There is nothing to remember."""

    def nack(self, offset: int, delay_us: int | None, reason: str, epoch: int | None = None) -> None:
        """There is nothing to send again."""

    def start(self) -> None:
        """Messages come by `offer`."""

    async def close(self) -> None:
        for consumer in self.consumers.values():
            if consumer.stream is not None:
                consumer.stream.end()

    def _consumers_changed(self) -> None:
        self._choice.changed([one for one in self.consumers.values() if one.stream is not None])
