"""A storage for asyncio that writes to Iceberg: the log, the mover and the progress of subscriptions in one object.

storage = await IcebergStorage.create("frazil-data")
await storage.store("orders", [b"tea", b"milk"])
async for message in storage.create_reader("orders", StartPosition.earliest()):
    ...

A message is durable in the log when `store` returns, and in the table once the mover, a second process, has moved it.
Readers see it at once, each at its own pace: they read the log and the table directly, without a queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from pydantic import SecretStr

from frazil.aio import Topic
from frazil.core.clock import SystemClock
from frazil.core.errors import InvalidInput, InvalidName, InvalidSettings, SparkUnavailable, TableRefused, TryLater
from frazil.core.names import TopicName
from frazil.core.offsets import OffsetRange
from frazil.core.rows import Message
from frazil.core.sequences import ProducerState, Sent
from frazil.core.settings import Settings, settings_of
from frazil.doors.flight.door import flight_door
from frazil.doors.tls import served_certificates
from frazil.lake.tables.look import TableLook, TableState
from frazil.lake.tables.schema import table_of
from frazil.log.folder.ownership import published_addresses
from frazil.log.read.positions import Start
from frazil.log.stats import TopicStats, topic_figures
from frazil.log.storage import Storage
from frazil.log.topic import Topic as LogTopic
from frazil.log.write.publishing import Outgoing
from frazil.meta.opening import open_meta
from frazil.meta.store import MetaStore
from frazil.node.access.local_token import LocalToken
from frazil.node.access.single_token import SingleTokenGate
from frazil.node.node import open_node
from frazil.pipeline.spark.requirements import check_tasks_reach_store, missing_part
from frazil.serve.mover_process import MoverProcess

__all__ = ["IcebergStorage", "StartPosition", "SubscriptionProgress", "SubscriptionReader", "TierStats"]

MOVER_SETTINGS_FILE = "~mover.json"
SUBSCRIPTIONS = "/persistent_storage/iceberg/subscriptions"
FLUSH_MS_MAX = 120_000
LOOK_INTERVAL_MS = 200

_SUBSCRIPTION = re.compile(r"[A-Za-z0-9_.-]{1,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class StartPosition:
    """The start position of a reader."""

    start: Start

    @classmethod
    def earliest(cls) -> StartPosition:
        return cls("earliest")

    @classmethod
    def latest(cls) -> StartPosition:
        return cls("latest")

    @classmethod
    def offset(cls, offset: int) -> StartPosition:
        return cls(offset)

    @classmethod
    def time(cls, time: datetime) -> StartPosition:
        return cls(time)


@dataclass(frozen=True, slots=True)
class SubscriptionProgress:
    """The progress of a subscription: the next offset, and the table position of a row before it, if known."""

    offset: int
    snapshot_id: int | None = None
    file: str | None = None
    sequence_number: int | None = None


@dataclass(frozen=True, slots=True)
class TierStats(TopicStats):
    """A `TopicStats` with this storage's own names for some figures."""

    @property
    def message_count(self) -> int:
        """All readable messages: `messages`."""
        return self.messages

    @property
    def bytes_stored(self) -> int:
        """Bytes in the log: `bytes`."""
        return self.bytes

    @property
    def log_end(self) -> int:
        return self.end

    @property
    def table_end(self) -> int:
        """The known end of the topic's table."""
        table = self.tiers.table
        return 0 if table is None else table.end or 0

    @property
    def snapshot_id(self) -> int | None:
        return None if self.tiers.table is None else self.tiers.table.snapshot_id

    def as_dict(self) -> dict[str, Any]:
        more = ("message_count", "bytes_stored", "log_end", "table_end", "snapshot_id")
        return {**asdict(self), **{name: getattr(self, name) for name in more}}


class IcebergStorage:
    """Created by `create`. Topics without a namespace are in `/default`; storing to a topic creates it."""

    def __init__(self, settings: Settings, parts: _Parts) -> None:
        self._settings = settings
        self._parts = parts
        self._topics: dict[TopicName, Topic] = {}

    @classmethod
    async def create(
        cls, config: str | os.PathLike[str] | Settings | Mapping[str, Any], *, mover: bool = True
    ) -> IcebergStorage:
        """Own the data folder of the settings. Use `mover=False` if another process moves rows, or none does."""
        settings = settings_of(config)
        if settings.data is None:
            raise InvalidSettings("data: a storage that writes to Iceberg needs a data folder; name one")
        return cls(settings, await asyncio.to_thread(_started, settings, mover))

    async def initialize_topic(self, topic: str, *, schema: pa.Schema | None = None) -> None:
        """Create the topic if it does not exist. Storing to it does so too."""
        await self._topic(topic, schema=schema)

    async def store(
        self, topic: str, messages: Iterable[bytes | str | Outgoing] | pa.RecordBatch, *, sent: Sent | None = None
    ) -> OffsetRange:
        """Append all or nothing, and return the offsets once they are durable in the log.

        With `sent`, a batch that is sent again after a lost answer is stored once; see `open_producer`.
        """
        return await (await self._topic(topic)).publish_many(messages, sent=sent)

    store_messages = store

    async def open_producer(self, topic: str, name: str, *, client: str | None = None) -> ProducerState:
        """Take the name of a producer, durably, and return its state; its previous clients are refused.

        A `client` that opens it again with the same id keeps its epoch.
        """
        return await (await self._topic(topic)).open_producer(name, client=client)

    async def get_topic_stats(self, topic: str) -> TierStats:
        return await asyncio.to_thread(self._stats, _name(topic))

    def create_reader(
        self, topic: str, start: StartPosition | Start = "earliest", *, subscription: str | None = None
    ) -> SubscriptionReader:
        """Read messages from `start` on, including later ones. A subscription continues from its saved progress."""
        if subscription is not None:
            _progress_key(subscription, _name(topic))
        return SubscriptionReader(self, topic, start.start if isinstance(start, StartPosition) else start, subscription)

    async def save_progress(self, subscription: str, topic: str, progress: SubscriptionProgress) -> None:
        """Durable when it returns. The last writer wins, even if it moves back."""
        await asyncio.to_thread(_save, self._parts.meta, _progress_key(subscription, _name(topic)), progress)

    async def load_progress(self, subscription: str, topic: str) -> SubscriptionProgress | None:
        key = _progress_key(subscription, _name(topic))
        found = await asyncio.to_thread(self._parts.meta.get, key)
        return None if found is None else _progress(json.loads(found.value))

    async def flush(self, topic: str | None = None, *, timeout_ms: int = FLUSH_MS_MAX) -> None:
        """Wait until the table of the topic, or of all, has all stored rows; raises `TryLater` on timeout."""
        names = self._parts.storage.topics() if topic is None else [str(_name(topic))]
        moved = [name for name in names if self._settings.of_topic(TopicName.parse(name)).enabled]
        ends = await asyncio.to_thread(lambda: {name: self._log_topic(name).sync() for name in moved})
        loop = asyncio.get_running_loop()
        give_up = loop.time() + timeout_ms / 1_000
        while behind := await asyncio.to_thread(self._behind, ends):
            if loop.time() >= give_up:
                name, end = next(iter(behind.items()))
                raise TryLater(
                    f"flush: the table has {name} up to offset {end}, not {ends[name]}, after {timeout_ms} ms; wait"
                    " longer, or see `frazil pipeline status`",
                    topic=name,
                    table_end=end,
                    log_end=ends[name],
                )
            await asyncio.sleep(LOOK_INTERVAL_MS / 1_000)

    async def shutdown(self) -> None:
        """End the mover, sync the log, release the folder. Rows that are not in their table yet are moved the next
        time."""
        await asyncio.to_thread(self._parts.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()

    # --- for its readers

    async def _topic(self, topic: str, *, schema: pa.Schema | None = None) -> Topic:
        name = _name(topic)
        found = self._topics.get(name)
        if found is None or schema is not None:
            made = await asyncio.to_thread(self._parts.storage.topic, str(name), schema=schema)
            found = self._topics[name] = Topic(made)
        return found

    def _log_topic(self, name: str) -> LogTopic:
        return self._parts.storage.topic(name, create=False)

    # --- in threads

    def _stats(self, name: TopicName) -> TierStats:
        return TierStats(**topic_figures(self._log_topic(str(name)).log))

    def _behind(self, ends: dict[str, int]) -> dict[str, int]:
        """Return the topics whose tables have not reached these ends, and their current ends."""
        look = TableLook(self._settings)
        states = {name: self._table(look, self._log_topic(name)).end or 0 for name in ends}
        return {name: end for name, end in states.items() if end < ends[name]}

    def _table(self, look: TableLook, topic: LogTopic) -> TableState:
        state = look.at(table_of(topic.log.name)[0], topic.log.log_id)
        if state.error is not None:
            raise TableRefused(state.error, topic=topic.name)
        return state


class SubscriptionReader(AsyncIterator[Message]):
    """Messages in order, for one task. `offset` is the next one; `save` stores it as the subscription's progress."""

    def __init__(self, storage: IcebergStorage, topic: str, start: Start, subscription: str | None) -> None:
        self._storage = storage
        self._topic = topic
        self._start = start
        self._subscription = subscription
        self._messages: AsyncIterator[Message] | None = None
        self.offset: int | None = None

    async def __anext__(self) -> Message:
        if self._messages is None:
            self._messages = (await self._storage._topic(self._topic)).read(await self._position(), follow=True)
        message = await anext(self._messages)
        self.offset = message.offset + 1
        return message

    async def save(self) -> None:
        """Mark everything returned so far as done: the subscription continues after it, even after a crash."""
        if self._subscription is None:
            raise InvalidInput("subscription: this reader has none; name one in create_reader")
        if self.offset is not None:
            progress = SubscriptionProgress(self.offset)
            await self._storage.save_progress(self._subscription, self._topic, progress)

    async def _position(self) -> Start:
        if self._subscription is None:
            return self._start
        saved = await self._storage.load_progress(self._subscription, self._topic)
        return self._start if saved is None else saved.offset


class _Parts:
    """The parts of a storage, closed together in reverse order."""

    def __init__(self, storage: Storage, meta: MetaStore, stack: contextlib.ExitStack) -> None:
        self.storage = storage
        self.meta = meta
        self._stack = stack

    def close(self) -> None:
        self._stack.close()


def _started(settings: Settings, mover: bool) -> _Parts:
    assert settings.data is not None
    if mover:
        check_tasks_reach_store(settings)
    missing = missing_part() if mover else None
    if missing is not None:
        raise SparkUnavailable(f"{missing}; mover=False does without")
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(open_node(settings, moves=mover))
        meta = open_meta(settings)
        stack.callback(meta.close)
        if mover:
            any_port = {} if "port" in settings.flight.model_fields_set else {"port": 0}
            flight = settings.flight.model_copy(update=any_port)
            if settings.security.enabled:
                node.gate = stack.enter_context(_gate_of_the_mover(settings.data))
            door = stack.enter_context(flight_door(node, flight, movers=True))
            addresses = {"flight": door.address, "advertised": door.advertised}
            stack.enter_context(published_addresses(settings, {**addresses, **served_certificates(settings)}))
            command = [sys.executable, "-m", "frazil", "pipeline", "run", "--while-stdin"]
            command += ["--data", str(settings.data), "--config", str(stack.enter_context(_mover_settings(settings)))]
            moving = MoverProcess(command, SystemClock())
            moving.start()
            stack.callback(moving.stop)
        return _Parts(node.storage, meta, stack.pop_all())


@contextlib.contextmanager
def _gate_of_the_mover(folder: Path) -> Iterator[SingleTokenGate]:
    """Only who can read the folder gets in: the mover finds the token there, as that of `frazil serve`."""
    local = LocalToken(folder)
    try:
        yield SingleTokenGate(local.token)
    finally:
        local.remove()


@contextlib.contextmanager
def _mover_settings(settings: Settings) -> Iterator[Path]:
    """Write the settings to a file for the mover, which may restart. It may contain secrets: only this user can read
    it."""
    assert settings.data is not None
    path = settings.data / MOVER_SETTINGS_FILE
    path.unlink(missing_ok=True)
    values = settings.model_dump(exclude_unset=True, exclude={"data", "metadata"})  # the mover does not use it
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        json.dump(values, file, default=_told_to_the_mover)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _told_to_the_mover(value: object) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


def _name(topic: str) -> TopicName:
    """Map `orders` to `/default/orders`."""
    return TopicName.parse(f"/default/{topic}" if isinstance(topic, str) and "/" not in topic else topic)


def _progress_key(subscription: str, name: TopicName) -> str:
    if not isinstance(subscription, str) or subscription in (".", "..") or not _SUBSCRIPTION.fullmatch(subscription):
        raise InvalidName(
            f"the subscription {subscription!r:.80} must be 1 to 128 of A-Z a-z 0-9 _ . - and neither '.' nor '..'",
            field="subscription",
        )
    return f"{SUBSCRIPTIONS}/{subscription}/{name.namespace}/{name.topic}"


def _progress(stored: dict[str, Any]) -> SubscriptionProgress:
    """The broker stores its own subscriptions under the same key, with more fields."""
    return SubscriptionProgress(
        stored["offset"], stored.get("snapshot_id"), stored.get("file"), stored.get("sequence_number")
    )


def _save(meta: MetaStore, key: str, progress: SubscriptionProgress) -> None:
    meta.put_all({key: json.dumps(asdict(progress)).encode()})
