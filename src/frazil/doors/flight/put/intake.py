"""The common part of all streams of batches into the log: a byte limit, and the steps from a batch to its response.

A stream reads a batch, checks it, queues it in the log, and responds once the log has settled it. Batches are processed
in order. After a refused batch no more are accepted. While the queue of the log is full the stream waits, which is
back-pressure for the client.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import Any

import grpc
import pyarrow as pa

from frazil.core import access
from frazil.core.access import Action, Right
from frazil.core.errors import FrazilError, Overloaded
from frazil.core.principal import Principal
from frazil.core.put_notes import FewRow
from frazil.core.settings import MIB, FlightSettings
from frazil.doors.admission import StreamRights
from frazil.doors.calls import Context, checked
from frazil.doors.flight.calls import Calls
from frazil.doors.flight.wire import Received
from frazil.doors.shared_bytes import BudgetLimits, SharedBytes
from frazil.node.node import Node
from frazil.node.publish.publishers import BatchPublisher
from frazil.node.request_ids import current
from frazil.node.telemetry.tables import TablePublisher
from frazil.node.types.log import Part, call_on

BEGUN_MAX = 64
"""Limit of unanswered batches of one stream: the log remembers as many, to recognise duplicates."""
DIRECT_BYTES_MAX = MIB
"""A larger batch is checked in a thread, so that the loop can serve others."""
WAIT_SECONDS_MAX = 30.0


class Put:
    """One batch from its arrival to its response."""

    __slots__ = ("began_us", "begun", "done", "error", "offset", "rows", "size_bytes", "stream", "traces")

    def __init__(self, stream: PuttingStream, traces: tuple[tuple[int, str], ...], size_bytes: int) -> None:
        self.stream = stream
        self.traces = traces or stream.traces
        self.size_bytes = size_bytes
        self.began_us = stream.now_us()
        self.rows: pa.RecordBatch | list[FewRow] | None = None
        self.offset = -1
        self.error: FrazilError | None = None
        self.begun = self.done = False


class Intake:
    """The shared state of all streams. Used on one event loop."""

    def __init__(self, node: Node, settings: FlightSettings, calls: Calls) -> None:
        self.node = node
        self.settings = settings
        self.calls = calls
        self.assembling = SharedBytes(
            BudgetLimits(
                "flight.buffer_bytes_max",
                max(settings.buffer_bytes_max, 2 * settings.batch_bytes_max),  # half of it holds the largest batch
                "flight.streams_max",
                2 * settings.streams_max,
            )
        )
        """For batches in pieces."""
        self._held_bytes = 0
        self._held_by: Counter[str] = Counter()
        self._room = asyncio.Event()

    def rights(self, context: Context, topic: str) -> StreamRights:
        """Check that the caller may publish here, before anything else is done for the stream."""
        rights = self.calls.rights(context, topic, Right(Action.PRODUCE, access.topic(topic)))
        rights.admit()
        return rights

    async def publisher(self, rights: StreamRights, topic: str) -> BatchPublisher:
        return await self.calls.blocking(self.node.publisher, rights.who, topic)

    def sender_of(self, stream: PuttingStream, caller: Principal) -> str:
        """Return under which name a stream shares what is held: its caller's, or its own while nobody is known."""
        return self.calls.account(caller) if self.calls.gate.is_on else f"stream {id(stream)}"

    async def has_room(self, sender: str) -> None:
        """Wait until the byte limit allows reading. Each stream may then exceed it by one message.

        With security on a caller may hold half of it: others are read although it never completes its batches.
        """
        limit = self.settings.buffer_bytes_max
        share = limit // 2 if self.calls.gate.is_on else limit
        while self._held_bytes >= limit or self._held_by[sender] >= share:
            self._room.clear()
            await self._room.wait()

    def hold(self, size_bytes: int, sender: str) -> None:
        self._held_bytes += size_bytes
        self._held_by[sender] += size_bytes

    def let_go(self, size_bytes: int, sender: str) -> None:
        self._held_bytes -= size_bytes
        self._held_by[sender] -= size_bytes
        if not self._held_by[sender]:
            del self._held_by[sender]
        self._room.set()

    def settled(self, part: Part) -> None:
        """Called by a committer."""
        call_on(self.calls.loop, _settle, part)


class PuttingStream:
    """One client's stream into one topic. A subclass for each protocol decodes batches and sends responses."""

    def __init__(
        self,
        intake: Intake,
        context: Context,
        rights: StreamRights,
        publisher: BatchPublisher | TablePublisher,
        schema: pa.Schema,
    ) -> None:
        self._intake = intake
        self._context = context
        self._rights = rights
        self._sender = intake.sender_of(self, rights.who)
        self._publisher = publisher
        self._schema = schema
        self._begun: deque[Any] = deque()
        self._moved = asyncio.Event()
        self._room = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        asked = current()
        self.traces = () if asked is None or asked.trace_parent is None else ((0, asked.trace_parent),)
        """The traces for batches without their own."""

    # --- implemented by each protocol

    def _put_of(self, data: Received) -> Put:
        """Return the batch that a message begins."""
        raise NotImplementedError

    async def _take(self, data: Received, put: Any) -> None:
        """Check the batch and queue it."""
        raise NotImplementedError

    def _begin_now(self, given: Any, put: Any) -> None:
        """Queue the batch in the log, or raise the reason why not."""
        raise NotImplementedError

    async def _answer(self, reading: asyncio.Task[None]) -> None:
        """Send responses until all queued batches have one."""
        raise NotImplementedError

    # --- common to all protocols

    def now_us(self) -> int:
        return self._publisher.now_us()

    async def serve(self) -> None:
        self._reading = asyncio.create_task(self._read(), name="flight put")
        self._reading.add_done_callback(lambda _: self._moved.set())
        try:
            with self._rights.open(self._take_no_more), self._intake.calls.until_end(self._take_no_more):
                await self._answer(self._reading)
        finally:
            self._reading.cancel()
        if not self._reading.cancelled() and (error := self._reading.exception()) is not None:
            raise error
        self._intake.calls.check_open()

    async def _read(self) -> None:
        while True:
            await self._has_room()
            data = checked(await self._context.read())
            if data is grpc.aio.EOF:
                return
            put = self._put_of(data)
            self._intake.hold(put.size_bytes, self._sender)
            self._begun.append(put)
            try:
                self._rights.take(put.size_bytes)
                await self._take(data, put)
            except FrazilError as error:
                put.error, put.done = error, True
                self._intake.let_go(put.size_bytes, self._sender)
                self._publisher.refused(error, put.began_us, put.traces)
                return
            finally:
                if not put.begun and not put.done:  # the door closes: without a response the client sends it again
                    self._begun.remove(put)
                    self._intake.let_go(put.size_bytes, self._sender)

    async def _has_room(self) -> None:
        while len(self._begun) >= BEGUN_MAX:
            self._room.clear()
            await self._room.wait()
        await self._intake.has_room(self._sender)

    async def _begin(self, given: Any, put: Put) -> None:
        """Queue the batch in the log, or raise the reason why not; waits while the queue is full."""
        waited = 0.0
        while True:
            try:
                if put.size_bytes > DIRECT_BYTES_MAX:
                    await self._begin_in_thread(given, put)
                else:
                    self._begin_now(given, put)
            except Overloaded as full:
                pause = full.fields["retry_after_ms"] / 1_000
                waited += pause
                if waited > WAIT_SECONDS_MAX:
                    raise
                await asyncio.sleep(pause)
            else:
                return

    async def _begin_in_thread(self, given: Any, put: Put) -> None:
        work = asyncio.ensure_future(self._intake.calls.blocking(self._begin_now, given, put))
        try:
            await asyncio.shield(work)
        finally:
            await asyncio.wait([work])  # the end of the stream must know whether it was queued

    def settle(self, put: Put) -> None:
        self._intake.let_go(put.size_bytes, self._sender)
        self._trace(put)
        if put.error is not None:
            self._take_no_more()
        self._moved.set()

    def _trace(self, put: Put) -> None:
        rows, put.rows = put.rows, None
        if rows is None:
            return
        if put.error is None:
            self._publisher.published(rows, put.offset, put.began_us, put.traces)
        else:
            self._publisher.refused(put.error, put.began_us, put.traces)

    def _take_no_more(self) -> None:
        if self._reading is not None:
            self._reading.cancel()


def _settle(part: Part) -> None:
    for put in part.tokens:
        put.offset, put.error, put.done = part.first_offset, part.error, True
        put.stream.settle(put)
