"""Shared base of the asyncio interfaces of the log and the client: the same names, awaited, over the same threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import pyarrow as pa

from frazil.core.offsets import OffsetRange
from frazil.core.rows import Message, to_messages
from frazil.core.settings import RetentionSettings
from frazil.log.read.positions import Start
from frazil.log.write.group import Notify, Part, call_on, resolve_futures
from frazil.log.write.publishing import Outgoing

Plain = TypeVar("Plain", bound="PlainTopic")
PlainMade = TypeVar("PlainMade", bound="PlainTopic", covariant=True)
Made = TypeVar("Made")


class PlainStorage(Protocol[PlainMade]):
    def topic(self, name: str, *, schema: pa.Schema | None = None, create: bool = True) -> PlainMade: ...

    def create_topic(
        self,
        name: str,
        *,
        schema: pa.Schema | None = None,
        retention: RetentionSettings | None = None,
        ack: str | None = None,
    ) -> PlainMade: ...

    def create_partitions(
        self, name: str, count: int, *, retention: RetentionSettings | None = None, ack: str | None = None
    ) -> Sequence[PlainMade]: ...

    def delete_topic(self, name: str) -> None: ...

    def change_schema(self, name: str, schema: pa.Schema) -> PlainMade: ...

    def set_retention(self, name: str, retention: RetentionSettings | None) -> None: ...

    def topics(self) -> list[str]: ...

    def close(self) -> None: ...


class PlainTopic(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> pa.Schema | None: ...

    def begin_publish(self, payload: Any, key: Any, attributes: Any, notify: Notify, token: object) -> None: ...

    def begin_publish_many(self, messages: Any, notify: Notify, token: object) -> int: ...

    def check_is_message_topic(self) -> None: ...

    def sync(self) -> int: ...


class AwaitedStorage(Generic[Plain, Made]):
    def __init__(self, storage: PlainStorage[Plain], awaited: Callable[[Plain], Made]) -> None:
        self._storage = storage
        self._awaited = awaited

    async def topic(self, name: str, *, schema: pa.Schema | None = None, create: bool = True) -> Made:
        return self._awaited(await asyncio.to_thread(self._storage.topic, name, schema=schema, create=create))

    async def create_topic(
        self,
        name: str,
        *,
        schema: pa.Schema | None = None,
        retention: RetentionSettings | None = None,
        ack: str | None = None,
    ) -> Made:
        create = self._storage.create_topic
        return self._awaited(await asyncio.to_thread(create, name, schema=schema, retention=retention, ack=ack))

    async def create_partitions(
        self, name: str, count: int, *, retention: RetentionSettings | None = None, ack: str | None = None
    ) -> list[Made]:
        """Create `<name>-part-0` up to `<name>-part-(count-1)`: all or none. Raises `TopicExists`
        if the topic exists."""
        made = await asyncio.to_thread(self._storage.create_partitions, name, count, retention=retention, ack=ack)
        return [self._awaited(one) for one in made]

    async def delete_topic(self, name: str) -> None:
        await asyncio.to_thread(self._storage.delete_topic, name)

    async def change_schema(self, name: str, schema: pa.Schema) -> Made:
        return self._awaited(await asyncio.to_thread(self._storage.change_schema, name, schema))

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


class AwaitedTopic(Generic[Plain]):
    """Publish to and read from one topic, from any number of tasks on one event loop."""

    def __init__(self, topic: Plain) -> None:
        self._topic = topic
        self._loop = asyncio.get_running_loop()
        self._notify = self._settled  # one object, so that a group is notified once for all its callers

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
        return await self._published(messages)

    async def _published(self, messages: Any, *numbered: Any) -> OffsetRange:
        future: asyncio.Future[int] = self._loop.create_future()
        count = self._topic.begin_publish_many(messages, self._notify, future, *numbered)
        first = await future
        return OffsetRange(first, first + count)

    def read(
        self, start: Start = "earliest", *, end: int | None = None, follow: bool = False
    ) -> AsyncIterator[Message]:
        """Read messages from `start` up to `end`, by default the current end; with `follow`, also later ones."""
        self._topic.check_is_message_topic()
        return messages_of(self.read_batches(start, end=end, follow=follow))

    def read_batches(
        self, start: Start = "earliest", *, end: int | None = None, follow: bool = False
    ) -> AsyncIterator[pa.RecordBatch]:
        """Read Arrow batches; each row has its `_offset` and `_append_time`."""
        raise NotImplementedError

    async def sync(self) -> int:
        return await asyncio.to_thread(self._topic.sync)

    def _settled(self, part: Part) -> None:
        """Called by a committer or a reader of answers: one hop to the loop for all callers of a group."""
        call_on(self._loop, resolve_futures, part)


async def messages_of(batches: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[Message]:
    async for batch in batches:
        for message in to_messages(batch):
            yield message
