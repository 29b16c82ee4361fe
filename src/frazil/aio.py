"""The log for asyncio: the same names as `frazil`, awaited. A thin layer over the same threads.

storage = await frazil.aio.open("frazil-data")
orders = await storage.topic("/default/orders")
offset = await orders.publish("tea")
async for message in orders.read("earliest", follow=True):
    ...
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from frazil.client.aio import RemoteStorage, RemoteSubscription, RemoteTopic, connect
from frazil.core.errors import Closed
from frazil.core.offsets import OffsetRange
from frazil.core.rows import Message, to_messages
from frazil.core.sequences import ProducerState, Sent
from frazil.core.settings import Settings
from frazil.log.aio_faces import AwaitedStorage, AwaitedTopic
from frazil.log.read.positions import Start, needs_lookup
from frazil.log.read.reader import BatchReader
from frazil.log.stats import TopicStats
from frazil.log.storage import Storage as _Storage
from frazil.log.topic import Topic as _Topic
from frazil.log.write.group import call_on
from frazil.log.write.publishing import Outgoing
from frazil.node.node import open_embedded
from frazil.node.read_only import ReadOnlyBatches, ReadOnlyStats
from frazil.node.read_only import ReadOnlyStorage as _ReadOnlyStorage
from frazil.node.read_only import ReadOnlyTopic as _ReadOnlyTopic
from frazil.node.read_only import open_read_only as _open_read_only

__all__ = [
    "ReadOnlyStorage",
    "ReadOnlyTopic",
    "RemoteStorage",
    "RemoteSubscription",
    "RemoteTopic",
    "Storage",
    "Topic",
    "connect",
    "open",
    "open_read_only",
]


async def open(  # noqa: A001 - as in `frazil`
    where: str | os.PathLike[str] | Settings | Mapping[str, Any] | None,
) -> Storage:
    """Open a data folder by name or by settings, creating it if it does not exist; `None` keeps
    everything in memory."""
    return Storage(await asyncio.to_thread(open_embedded, where))


async def open_read_only(where: str | os.PathLike[str] | Settings | Mapping[str, Any]) -> ReadOnlyStorage:
    """Read topics through the catalog of the settings; nothing is created, owned or locked."""
    return ReadOnlyStorage(await asyncio.to_thread(_open_read_only, where))


class Storage(AwaitedStorage[_Topic, "Topic"]):
    def __init__(self, storage: _Storage) -> None:
        super().__init__(storage, Topic)


class Topic(AwaitedTopic[_Topic]):
    async def publish_many(
        self, messages: Iterable[bytes | str | Outgoing] | pa.RecordBatch, *, sent: Sent | None = None
    ) -> OffsetRange:
        """Append all or nothing, as one batch, and return its offsets once it is durable.

        With `sent` the batch is numbered by its producer: a duplicate is not stored again, and gets the original
        offsets.
        """
        return await self._published(messages, sent)

    async def open_producer(self, name: str, *, client: str | None = None) -> ProducerState:
        """Take the name of a producer, durably, and return its state; its previous clients are refused.

        A `client` that opens it again with the same id keeps its epoch.
        """
        return await asyncio.to_thread(self._topic.open_producer, name, client=client)

    async def producer_state(self, name: str) -> ProducerState | None:
        """Return the state of a producer; None if it is unknown or forgotten."""
        return self._topic.producer_state(name)

    def read_batches(
        self, start: Start = "earliest", *, end: int | None = None, follow: bool = False
    ) -> AsyncIterator[pa.RecordBatch]:
        """Read Arrow batches; each row has its `_offset` and `_append_time`."""
        if needs_lookup(self._topic.log, start):
            return self._batches(asyncio.to_thread(self._topic.read_batches, start, end=end, follow=follow))
        return self._batches(self._topic.read_batches(start, end=end, follow=follow))

    async def _batches(self, made: BatchReader | Coroutine[Any, Any, BatchReader]) -> AsyncIterator[pa.RecordBatch]:
        reader = made if isinstance(made, BatchReader) else await made
        try:
            while not reader.finished:
                batch = reader.poll(cached_only=True)
                if batch is None and not reader.waits:
                    batch = await asyncio.to_thread(reader.poll)
                if batch is not None:
                    yield batch
                elif reader.waits:
                    await self._wait(reader)
        finally:
            reader.close()

    async def stats(self) -> TopicStats:
        return await asyncio.to_thread(self._topic.stats)

    async def _wait(self, reader: BatchReader) -> None:
        """Register, check again, and only then wait, so that no change of the end is missed."""
        more = asyncio.Event()
        tail = self._topic.log.tail

        def wake() -> None:
            call_on(self._loop, more.set)

        tail.add(wake)
        try:
            if reader.waits:
                if self._topic.log.closed:
                    raise Closed(f"the log of {self.name}")
                await more.wait()
        finally:
            tail.discard(wake)


class ReadOnlyStorage:
    def __init__(self, storage: _ReadOnlyStorage) -> None:
        self._storage = storage

    async def topics(self) -> list[str]:
        return await asyncio.to_thread(self._storage.topics)

    async def topic(self, name: str) -> ReadOnlyTopic:
        return ReadOnlyTopic(await asyncio.to_thread(self._storage.topic, name))

    async def close(self) -> None:
        self._storage.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class ReadOnlyTopic:
    def __init__(self, topic: _ReadOnlyTopic) -> None:
        self._topic = topic

    @property
    def name(self) -> str:
        return self._topic.name

    @property
    def schema(self) -> pa.Schema | None:
        return self._topic.schema

    async def stats(self) -> ReadOnlyStats:
        return await asyncio.to_thread(self._topic.stats)

    def read(
        self, start: Start = "earliest", *, end: int | None = None, follow: bool = False
    ) -> AsyncIterator[Message]:
        """Read messages from `start` up to `end`, by default the table's current end; with
        `follow`, also later ones."""
        self._topic.check_is_message_topic()
        return _TableMessages(self.read_batches(start, end=end, follow=follow))

    def read_batches(
        self, start: Start = "earliest", *, end: int | None = None, follow: bool = False
    ) -> AsyncIterator[pa.RecordBatch]:
        """Read Arrow batches; each row has its `_offset` and `_append_time`."""
        return _TableBatches(lambda: self._topic.read_batches(start, end=end, follow=follow))


class _TableBatches(AsyncIterator[pa.RecordBatch]):
    """Not a generator, which would end with the first error: this iterator can be called again."""

    def __init__(self, make: Callable[[], ReadOnlyBatches]) -> None:
        self._make = make
        self._reader: ReadOnlyBatches | None = None

    async def __anext__(self) -> pa.RecordBatch:
        if self._reader is None:
            self._reader = await asyncio.to_thread(self._make)
        reader = self._reader
        while not reader.finished:
            at = reader.offset
            batch = await asyncio.to_thread(reader.poll)
            if batch is not None:
                return batch
            if reader.offset == at and not reader.finished:
                await asyncio.sleep(reader.poll_interval_ms / 1_000)
        reader.close()
        raise StopAsyncIteration


class _TableMessages(AsyncIterator[Message]):
    def __init__(self, batches: AsyncIterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._ready: Iterator[Message] = iter(())

    async def __anext__(self) -> Message:
        for message in self._ready:
            return message
        self._ready = iter(to_messages(await anext(self._batches)))
        return next(self._ready)
