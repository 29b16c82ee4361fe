"""A topic as the broker has it: with a log, or without one if it is non-reliable."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from frazil.broker.subscriptions.live import LiveSubscription
from frazil.broker.subscriptions.subscription import Subscription
from frazil.broker.topics.entry import Entry
from frazil.broker.topics.feed import Feed
from frazil.core.errors import TopicDiffers
from frazil.core.names import TopicName
from frazil.core.rows import TIME, Message, Origin
from frazil.log.topic import Topic
from frazil.log.write.group import Part, call_on, resolve_futures
from frazil.log.write.publishing import checked_message

if TYPE_CHECKING:
    from frazil.broker.clients import Producer


class OutgoingMessage(NamedTuple):
    payload: bytes
    key: str | None
    attributes: Mapping[str, str]
    origin: Origin


class BrokerTopic:
    def __init__(self, name: TopicName, log: Topic | None) -> None:
        self.name = name
        self.label = str(name)
        self.producers: dict[str, Producer] = {}
        self.subscriptions: dict[str, Subscription | LiveSubscription] = {}
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._notify = self._settled  # one object, so that a group is notified once for all its callers
        self._live_offsets = itertools.count()
        self.feed = Feed(log) if log is not None else None

    @property
    def reliable(self) -> bool:
        return self._log is not None

    @property
    def log_id(self) -> str | None:
        return None if self._log is None else self._log.log.log_id

    @property
    def has_history(self) -> bool:
        """Whether it has, or may get, a table."""
        return self._log is not None and self._log.log.history is not None

    def is_of_log(self, log_id: str | None) -> bool:
        """Whether records with that log id belong to this topic: its log, or one that was renumbered to it."""
        former = () if self._log is None else self._log.log.former
        return log_id in (None, self.log_id, *(one.log_id for one in former))

    @property
    def end(self) -> int:
        return self.feed.end if self.feed is not None else 0

    def acked_end(self) -> int:
        """Return the offset up to which every subscription has durably acknowledged; 0 if there is
        none. Thread-safe."""
        known = list(self.subscriptions.values())
        return min((one.durable_end for one in known if isinstance(one, Subscription)), default=0)

    def check_dispatch(self, *, reliable: bool) -> None:
        if self.reliable is not reliable:
            have, want = (("reliable" if each else "non-reliable") for each in (self.reliable, reliable))
            raise TopicDiffers(self.label, f"its dispatch is {have}, not {want}")

    async def publish(self, message: OutgoingMessage) -> int:
        """Return the offset once the message is durable; for a topic without a log, once it was offered."""
        if self._log is None:
            return self._offer(message)
        future: asyncio.Future[int] = self._loop.create_future()
        self._log.begin_publish(message.payload, message.key, message.attributes, self._notify, future, message.origin)
        return await future

    async def publish_with_headers(self, message: OutgoingMessage, extra_bytes: int) -> int:
        """Publish a message to which the broker added headers: that many bytes may exceed the limit."""
        assert self._log is not None
        future: asyncio.Future[int] = self._loop.create_future()
        log = self._log.log
        row, size = checked_message(
            log.context.settings, message.payload, message.key, message.attributes, message.origin, extra_bytes
        )
        log.begin_message(row, size, self._notify, future)
        return await future

    async def close(self) -> None:
        for subscription in self.subscriptions.values():
            await subscription.close()
        if self.feed is not None:
            self.feed.close()

    def _offer(self, message: OutgoingMessage) -> int:
        offset = next(self._live_offsets)
        time = pa.scalar(message.origin.publish_time_us or 0, TIME).as_py()
        key = None if message.key is None else message.key.encode()
        entry = Entry(
            Message(
                offset, time, time, message.payload, key, dict(message.attributes), message.origin.producer,
                message.origin.schema_id, message.origin.schema_version,
            )
        )  # fmt: skip
        for subscription in self.subscriptions.values():
            assert isinstance(subscription, LiveSubscription)
            subscription.offer(entry)
        return offset

    def _settled(self, part: Part) -> None:
        """Called by a committer: one hop to the loop for all callers of a group."""
        call_on(self._loop, resolve_futures, part)
