"""The client for asyncio: the same names, awaited. A thin face over the same threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import pyarrow as pa

from frazil.client.reading import RemoteBatches
from frazil.client.storage import RemoteStorage as _RemoteStorage
from frazil.client.storage import connect as _connect
from frazil.client.subscription import RemoteSubscription as _RemoteSubscription
from frazil.client.topic import RemoteTopic as _RemoteTopic
from frazil.core.offsets import OffsetRange
from frazil.core.rows import Message, to_messages
from frazil.core.settings import MIB, RetentionSettings
from frazil.log.group import Part, resolve_futures
from frazil.log.positions import Start
from frazil.log.publishing import Outgoing
from frazil.log.topic import TopicStats

Source = TypeVar("Source", bound=RemoteBatches | _RemoteSubscription)


async def connect(
    address: str, *, producer: str | None = None, buffer_bytes_max: int = 64 * MIB, give_up_ms: int = 30_000
) -> RemoteStorage:
    """The topics of `frazil serve`, by the address of its Flight door; see `frazil.connect`."""
    made = await asyncio.to_thread(
        _connect, address, producer=producer, buffer_bytes_max=buffer_bytes_max, give_up_ms=give_up_ms
    )
    return RemoteStorage(made)


class RemoteStorage:
    def __init__(self, storage: _RemoteStorage) -> None:
        self._storage = storage

    @property
    def producer(self) -> str:
        return self._storage.producer

    async def topic(self, name: str, *, schema: pa.Schema | None = None, create: bool = True) -> RemoteTopic:
        return RemoteTopic(await asyncio.to_thread(self._storage.topic, name, schema=schema, create=create))

    async def create_topic(
        self, name: str, *, schema: pa.Schema | None = None, retention: RetentionSettings | None = None
    ) -> RemoteTopic:
        made = await asyncio.to_thread(self._storage.create_topic, name, schema=schema, retention=retention)
        return RemoteTopic(made)

    async def delete_topic(self, name: str) -> None:
        await asyncio.to_thread(self._storage.delete_topic, name)

    async def change_schema(self, name: str, schema: pa.Schema) -> RemoteTopic:
        return RemoteTopic(await asyncio.to_thread(self._storage.change_schema, name, schema))

    async def set_retention(self, name: str, retention: RetentionSettings | None) -> None:
        await asyncio.to_thread(self._storage.set_retention, name, retention)

    async def topics(self) -> list[str]:
        return await asyncio.to_thread(self._storage.topics)

    async def close(self) -> None:
        await asyncio.to_thread(self._storage.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class RemoteTopic:
    """Publish to and read from one topic, from as many tasks as you like, on one event loop."""

    def __init__(self, topic: _RemoteTopic) -> None:
        self._topic = topic
        self._loop = asyncio.get_running_loop()
        self._notify = self._settled  # one object, so that a batch is told once for all its callers

    @property
    def name(self) -> str:
        return self._topic.name

    @property
    def schema(self) -> pa.Schema | None:
        return self._topic.schema

    async def publish(
        self, payload: bytes | str, *, key: bytes | str | None = None, attributes: Mapping[str, str] | None = None
    ) -> int:
        """Append one message and return its offset once it is durable. A cancelled call may still be stored."""
        future: asyncio.Future[int] = self._loop.create_future()
        self._topic.begin_publish(payload, key, attributes, self._notify, future)
        return await future

    async def publish_many(self, messages: Iterable[bytes | str | Outgoing] | pa.RecordBatch) -> OffsetRange:
        """Append all or nothing, as one batch, and return its offsets once it is durable."""
        future: asyncio.Future[int] = self._loop.create_future()
        count = self._topic.begin_publish_many(messages, self._notify, future)
        first = await future
        return OffsetRange(first, first + count)

    def read(
        self, start: Start = "earliest", *, end: int | None = None, follow: bool = False
    ) -> AsyncIterator[Message]:
        """Messages from `start` up to `end`, or what is there now; with `follow`, also all that comes."""
        self._topic.check_is_message_topic()
        return self._messages(self.read_batches(start, end=end, follow=follow))

    async def read_batches(
        self, start: Start = "earliest", *, end: int | None = None, follow: bool = False
    ) -> AsyncIterator[pa.RecordBatch]:
        """The same as Arrow batches, each row with its `_offset` and `_append_time`."""
        taken: _Taken[RemoteBatches] = _Taken(lambda: self._topic.read_batches(start, end=end, follow=follow))
        try:
            while (batch := await taken.next()) is not None:
                yield batch
        finally:
            taken.close()

    async def subscribe(
        self, name: str, *, kind: str = "exclusive", consumer: str | None = None, key_filters: Sequence[str] = ()
    ) -> RemoteSubscription:
        """Messages of a subscription, each to be acknowledged; a new one begins with what is published next."""
        taken: _Taken[_RemoteSubscription] = _Taken(
            lambda: self._topic.subscribe(name, kind=kind, consumer=consumer, key_filters=key_filters)
        )
        await taken.open()
        return RemoteSubscription(taken)

    async def stats(self) -> TopicStats:
        return await asyncio.to_thread(self._topic.stats)

    async def sync(self) -> int:
        return await asyncio.to_thread(self._topic.sync)

    async def _messages(self, batches: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[Message]:
        async for batch in batches:
            for message in to_messages(batch):
                yield message

    def _settled(self, part: Part) -> None:
        """Called when an answer has come: one hop to the loop for all callers of a batch."""
        self._loop.call_soon_threadsafe(resolve_futures, part)


class RemoteSubscription(AsyncIterator[Message]):
    def __init__(self, taken: _Taken[_RemoteSubscription]) -> None:
        self._taken = taken

    async def __anext__(self) -> Message:
        message: Message | None = await self._taken.next()
        if message is None:
            raise StopAsyncIteration
        return message

    async def ack(self, *offsets: int) -> None:
        await asyncio.to_thread((await self._taken.open()).ack, *offsets)

    async def nack(self, offset: int, *, delay_ms: int | None = None, reason: str = "refused by its consumer") -> None:
        await asyncio.to_thread((await self._taken.open()).nack, offset, delay_ms=delay_ms, reason=reason)

    async def close(self) -> None:
        self._taken.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._taken.close()


class _Taken(Generic[Source]):
    """An iterator that waits in a thread of its own: many may wait at once, and none holds up the loop's pool."""

    def __init__(self, make: Callable[[], Source]) -> None:
        self._make = make
        self._source: Source | None = None
        self._thread = ThreadPoolExecutor(1, "frazil-reader")

    async def open(self) -> Source:
        source = self._source
        if source is None:
            source = self._source = await asyncio.get_running_loop().run_in_executor(self._thread, self._make)
        return source

    async def next(self) -> Any:
        """None at the end."""
        source = await self.open()
        return await asyncio.get_running_loop().run_in_executor(self._thread, next, source, None)

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
        self._thread.shutdown(wait=False)
