"""The client for asyncio: the same methods, awaited. A thin layer over the same threads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, Self, TypeVar

import pyarrow as pa

from frazil.client.reading import RemoteBatches
from frazil.client.storage import RemoteStorage as _RemoteStorage
from frazil.client.storage import connect as _connect
from frazil.client.subscription import RemoteSubscription as _RemoteSubscription
from frazil.client.topic import RemoteTopic as _RemoteTopic
from frazil.core.credentials import ClientCredentials
from frazil.core.process.own_process import OwnProcess
from frazil.core.rows import Message
from frazil.core.settings import MIB
from frazil.core.settings.security import ClientSettings
from frazil.log.aio_faces import AwaitedStorage, AwaitedTopic
from frazil.log.read.positions import Start
from frazil.log.stats import TopicStats

Source = TypeVar("Source", bound=RemoteBatches | _RemoteSubscription)


async def connect(
    address: str | Sequence[str],
    *,
    token: str | None = None,
    ca: str | os.PathLike[str] | None = None,
    certificate: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    client: ClientSettings | ClientCredentials | None = None,
    producer: str | None = None,
    buffer_bytes_max: int = 64 * MIB,
    give_up_ms: int = 30_000,
) -> RemoteStorage:
    """Connect to the Flight address of `frazil serve`; see `frazil.connect`."""
    made = await asyncio.to_thread(
        _connect,
        address,
        token=token,
        ca=ca,
        certificate=certificate,
        key=key,
        client=client,
        producer=producer,
        buffer_bytes_max=buffer_bytes_max,
        give_up_ms=give_up_ms,
    )
    return RemoteStorage(made)


class RemoteStorage(AwaitedStorage[_RemoteTopic, "RemoteTopic"]):
    def __init__(self, storage: _RemoteStorage) -> None:
        super().__init__(storage, RemoteTopic)
        self._remote = storage
        self._producer = storage.producer

    @property
    def producer(self) -> str:
        return self._producer

    async def delete_topic(self, name: str, *, force: bool = False) -> None:
        """Delete a topic. Raises `TopicInUse` if it has broker subscriptions or producers, unless `force` is set."""
        await asyncio.to_thread(self._remote.delete_topic, name, force=force)


class RemoteTopic(AwaitedTopic[_RemoteTopic]):
    async def open_producer(self) -> None:
        """After `ProducerFenced`, reclaim the producer name from its current client with the next publish."""
        self._topic.open_producer()

    async def read_batches(
        self, start: Start = "earliest", *, end: int | None = None, follow: bool = False
    ) -> AsyncIterator[pa.RecordBatch]:
        """Read Arrow batches; each row has its `_offset` and `_append_time`."""
        taken: _Taken[RemoteBatches] = _Taken(lambda: self._topic.read_batches(start, end=end, follow=follow))
        try:
            while (batch := await taken.next()) is not None:
                yield batch
        finally:
            taken.close()

    async def subscribe(
        self, name: str, *, kind: str = "exclusive", consumer: str | None = None, key_filters: Sequence[str] = ()
    ) -> RemoteSubscription:
        """Read the messages of a subscription, each to be acknowledged; a new one begins with the next published
        message.
        """
        taken: _Taken[_RemoteSubscription] = _Taken(
            lambda: self._topic.subscribe(name, kind=kind, consumer=consumer, key_filters=key_filters)
        )
        await taken.open()
        return RemoteSubscription(taken)

    async def stats(self) -> TopicStats:
        return await asyncio.to_thread(self._topic.stats)


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
    """An iterator that blocks in its own thread: many can wait at once without occupying the loop's thread pool."""

    def __init__(self, make: Callable[[], Source]) -> None:
        self._make = make
        self._source: Source | None = None
        self._thread = ThreadPoolExecutor(1, "frazil-reader")
        self._process = OwnProcess("the reader", "make one in each process")

    async def open(self) -> Source:
        self._process.check()
        source = self._source
        if source is None:
            source = self._source = await asyncio.get_running_loop().run_in_executor(self._thread, self._make)
        return source

    async def next(self) -> Any:
        """Return None at the end."""
        source = await self.open()
        return await asyncio.get_running_loop().run_in_executor(self._thread, next, source, None)

    def close(self) -> None:
        if not self._process.is_here:
            return
        if self._source is not None:
            self._source.close()
        self._thread.shutdown(wait=False)
