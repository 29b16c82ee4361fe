"""A subscription of a topic without a log: messages go to connected consumers, and are dropped if they are slow."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from frazil.broker.counts import DeliveryCounts
from frazil.broker.delivery.assignment import Kind, Member, assignment_of
from frazil.broker.subscriptions.consumer import Consumer, Stream
from frazil.broker.topics.entry import Entry

BUFFER_MAX = 100
BUFFER_BYTES_MAX = 16 * 1024 * 1024


class LiveSubscription:
    def __init__(self, name: str, kind: Kind) -> None:
        self.name = name
        self.kind = kind
        self.consumers: dict[str, Consumer] = {}
        self.counts = DeliveryCounts()
        self._assignment = assignment_of(kind)
        self._members: dict[str, Member] = {}
        self._expected: dict[str, Stream] = {}
        """Streams of consumers that have subscribed but not connected yet: messages are buffered for them."""

    def offer(self, entry: Entry) -> None:
        member = self._assignment.pick(entry.key, sys.maxsize)
        stream = None if member is None else self._stream_of(member.name)
        if stream is None or len(stream) >= BUFFER_MAX or stream.size_bytes >= BUFFER_BYTES_MAX:
            self.counts.dropped += 1
        else:
            stream.put(entry)
            self.counts.deliveries += 1

    def add(self, consumer: Consumer) -> None:
        self.consumers[consumer.name] = consumer
        self._members[consumer.name] = Member(consumer.name, consumer.key_filters)

    def set_filters(self, consumer: Consumer, key_filters: Sequence[str]) -> None:
        self.end_stream(consumer)
        self._forget(consumer.name)
        consumer.key_filters = tuple(key_filters)
        self._members[consumer.name].set_filters(consumer.key_filters)

    def expect(self, consumer: Consumer) -> None:
        """The consumer has subscribed and will connect: buffer messages for it, up to the limits."""
        self._forget(consumer.name)
        self._expected[consumer.name] = Stream()
        self._assignment.connected(self._members[consumer.name])

    def connect(self, consumer: Consumer) -> Stream:
        if consumer.stream is not None:
            self.disconnect(consumer, consumer.stream)
        expected = self._expected.pop(consumer.name, None)
        if expected is None:
            self._assignment.connected(self._members[consumer.name])
        consumer.stream = expected or Stream()
        return consumer.stream

    def end_stream(self, consumer: Consumer) -> None:
        """End the consumer's stream, if there is one, before another replaces it."""
        if consumer.stream is not None:
            consumer.stream.is_replaced = True
            self.disconnect(consumer, consumer.stream)

    def disconnect(self, consumer: Consumer, stream: Stream) -> None:
        stream.end()
        if consumer.stream is stream:
            consumer.stream = None
            self._assignment.disconnected(self._members[consumer.name])

    def ack(self, offset: int, incarnation: int | None = None) -> None:
        """Do nothing: no state is kept."""

    def nack(self, offset: int, delay_us: int | None, reason: str, incarnation: int | None = None) -> None:
        """Do nothing: there is no redelivery."""

    def start(self) -> None:
        """Do nothing: messages arrive through `offer`."""

    def end_at_once(self) -> None:
        for consumer in self.consumers.values():
            if consumer.stream is not None:
                consumer.stream.end()

    async def close(self) -> None:
        self.end_at_once()

    def in_flight_of(self, consumer: str) -> int:  # noqa: ARG002 - nothing waits for an answer
        return 0

    def _stream_of(self, name: str) -> Stream | None:
        return self._expected.get(name) or self.consumers[name].stream

    def _forget(self, name: str) -> None:
        if self._expected.pop(name, None) is not None:
            self._assignment.disconnected(self._members[name])
