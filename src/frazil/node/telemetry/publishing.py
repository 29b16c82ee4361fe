"""Publishers of requests: one for each caller and topic, kept, since looking a topic up costs more than a request.

The bytes of a request go into the log as they are: Arrow's buffers refer to them until the log's writer copies them.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from frazil.core.errors import Closed, TopicDiffers, TopicNotFound
from frazil.core.names import TopicName
from frazil.core.principal import Principal
from frazil.node.publish.publishers import BatchPublisher
from frazil.node.telemetry.creating import create_topic
from frazil.node.telemetry.places import TenantPlace, route_of
from frazil.telemetry.signals import Signal, request_schema, signal_of

if TYPE_CHECKING:
    from frazil.node.node import Node
    from frazil.node.telemetry.creating import Admit

KEPT_MAX = 16_384
"""Publishers; the one that was not used for the longest time goes first."""
OPENING_MAX = 256
"""Topics that are looked up or created at once; more requests for other topics wait."""
_SCHEMAS = {signal: request_schema(signal) for signal in Signal}
_OFFSETS = struct.Struct("=ii")
_ITEMS = struct.Struct("=i")


class RequestTarget(NamedTuple):
    """Where a caller's requests go."""

    caller: Principal
    place: TenantPlace
    signal: Signal


class RequestPublishers:
    """Created and used on one event loop."""

    def __init__(self, node: Node, admit: Admit, kept_max: int = KEPT_MAX) -> None:
        """`admit` is called before a topic is created."""
        self._node = node
        self._admit = admit
        self._kept_max = kept_max
        self._kept: OrderedDict[RequestTarget, BatchPublisher] = OrderedDict()
        self._opening: dict[RequestTarget, asyncio.Task[BatchPublisher]] = {}
        self._turns = asyncio.Semaphore(OPENING_MAX)

    @property
    def kept(self) -> list[RequestTarget]:
        """Return whose publishers are kept, the one that was used last at the end."""
        return list(self._kept)

    async def publish(self, target: RequestTarget, request: bytes, items: int) -> int:
        """Append one request and return its offset once it is durable. The topic is created by its first request."""
        batch = request_batch(target.signal, request, items)
        publisher = self._kept.get(target)
        if publisher is not None:
            self._kept.move_to_end(target)
            try:
                return (await publisher.publish(batch)).start
            except Closed:  # the topic was deleted, or moved to another broker: look it up again
                self.drop(target, publisher)
        publisher = await self._opened(target)
        return (await publisher.publish(batch)).start

    def drop(self, target: RequestTarget, publisher: BatchPublisher) -> None:
        if self._kept.get(target) is publisher:
            del self._kept[target]

    async def _opened(self, target: RequestTarget) -> BatchPublisher:
        """Look the topic up once for all requests that wait for it."""
        task = self._opening.get(target)
        if task is None:
            task = self._opening[target] = asyncio.create_task(self._open(target), name="telemetry topic")
            task.add_done_callback(lambda _: self._opening.pop(target, None))
        return await asyncio.shield(task)

    async def _open(self, target: RequestTarget) -> BatchPublisher:
        async with self._turns:
            publisher = await self._found_or_made(target)
        check_is_of(publisher, target.signal)
        self._kept[target] = publisher
        while len(self._kept) > self._kept_max:
            self._kept.popitem(last=False)
        return publisher

    async def _found_or_made(self, target: RequestTarget) -> BatchPublisher:
        who, topic = target.caller, route_of(target.place, target.signal).topic
        with contextlib.suppress(TopicNotFound):
            found = await asyncio.to_thread(self._node.publisher, who, str(topic))
            await asyncio.to_thread(self._admit, target.place)
            return found
        await create_topic(self._node, who, target.place, topic, _SCHEMAS[target.signal], self._admit)
        return await asyncio.to_thread(self._node.publisher, who, str(topic))


def request_batch(signal: Signal, request: bytes, items: int) -> pa.RecordBatch:
    """Return the row of a request, without a copy of its bytes."""
    size = len(request)
    offsets, data = pa.py_buffer(_OFFSETS.pack(0, size)), pa.py_buffer(request)
    column = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, data])
    number = pa.Array.from_buffers(pa.int32(), 1, [None, pa.py_buffer(_ITEMS.pack(items))])
    return pa.RecordBatch.from_arrays([column, number], schema=_SCHEMAS[signal])


def check_is_of(publisher: BatchPublisher, signal: Signal) -> None:
    """Raise `TopicDiffers` for a topic that was made by other means, with other columns."""
    schema = publisher.topic.schema
    if (
        schema is None
        or signal_of(TopicName.parse(publisher.topic.name), schema) is not signal
        or not schema.equals(_SCHEMAS[signal])
    ):
        raise TopicDiffers(publisher.topic.name, f"it is no topic of requests of {signal}; use another dataset")
