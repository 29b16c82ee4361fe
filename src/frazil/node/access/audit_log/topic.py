"""A copy of the audit log in a topic, best effort: the file is the record, and loses less."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from frazil.core.errors import FrazilError, TopicNotFound
from frazil.core.names import TopicName
from frazil.core.principal import LOCAL

if TYPE_CHECKING:
    from frazil.node.access.audit import Audit
    from frazil.node.node import Node

WAITING_MAX = 10_000
_BATCH_MAX = 1_000

_log = logging.getLogger("frazil.audit")

Publish = Callable[[list[bytes]], Awaitable[object]]


@asynccontextmanager
async def audit_topic_open(node: Node, audit: Audit, name: str) -> AsyncIterator[AuditTopic]:
    """Copy the records of a log to a topic, which is created if it does not exist, while the context is open."""

    async def publish(lines: list[bytes]) -> None:
        try:
            await node.publish(LOCAL, name, lines)
        except TopicNotFound:
            await node.create_topic(LOCAL, TopicName.parse(name))
            await node.publish(LOCAL, name, lines)

    copied = AuditTopic(publish, asyncio.get_running_loop())
    audit.set_sink(copied.offer)
    try:
        yield copied
    finally:
        audit.set_sink(None)
        await copied.close()


class AuditTopic:
    """Publishes lines on an event loop, a batch at a time. A full queue and a failed publish lose records, counted."""

    def __init__(self, publish: Publish, loop: asyncio.AbstractEventLoop, waiting_max: int = WAITING_MAX) -> None:
        self.lost = 0
        self._publish = publish
        self._loop = loop
        self._waiting_max = waiting_max
        self._waiting: deque[bytes] = deque()
        self._task: asyncio.Task[None] | None = None
        self._has_failed = False
        self._is_closed = False

    def offer(self, lines: list[bytes]) -> None:
        """Take lines from any thread, without waiting."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._take, lines)

    async def close(self) -> None:
        """Publish what waits. Call it on the loop, while the Node is still open."""
        self._is_closed = True
        if self._task is not None:
            await self._task

    def _take(self, lines: list[bytes]) -> None:
        room = 0 if self._is_closed else self._waiting_max - len(self._waiting)
        self._waiting.extend(lines[:room])
        self.lost += len(lines[room:])
        if self._waiting and self._task is None:
            self._task = self._loop.create_task(self._run())

    async def _run(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(_BATCH_MAX, len(self._waiting)))]
            try:
                await self._publish(batch)
            except FrazilError as error:
                self.lost += len(batch)
                if not self._has_failed:
                    _log.warning("the audit topic can't be written: %s", error)
                self._has_failed = True
            except Exception:  # noqa: BLE001 - logged; later records may pass
                self.lost += len(batch)
                if not self._has_failed:
                    _log.exception("the audit topic can't be written")
                self._has_failed = True
            else:
                self._has_failed = False
        self._task = None
