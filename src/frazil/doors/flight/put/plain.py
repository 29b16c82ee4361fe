"""Streams of plain record batches from any Flight client, as its `do_put` with a path descriptor sends them.

    descriptor      the path of an existing topic, see `frazil.doors.flight.targets`
    schema          the topic's columns, see `frazil.doors.flight.put.plain_columns`
    each batch      stored as a whole or not at all; its `app_metadata` is ignored
    each answer     {"batches": 1, "rows", "first_offset", "end_offset"}: the next batch, in the order sent, is durable

A batch without rows is answered with null offsets. The first refused batch ends the stream with a
gRPC status, after the responses to earlier batches. Batches have no numbers: one without a response may be stored, and
is stored twice if it is sent again.

A client that never reads its responses is not blocked: if many wait, the next ones are merged ("batches" above 1), and
between the offsets of merged responses there may be rows of other clients.
"""

from __future__ import annotations

import asyncio
from collections import deque

import pyarrow as pa

from frazil.core.errors import FrazilError
from frazil.doors.admission import StreamRights
from frazil.doors.calls import Context
from frazil.doors.flight.calls import as_json
from frazil.doors.flight.flight_pb2 import PutResult
from frazil.doors.flight.put.intake import DIRECT_BYTES_MAX, Intake, Put, PuttingStream
from frazil.doors.flight.put.plain_columns import PlainColumns
from frazil.doors.flight.wire import Received, received_batch, received_schema
from frazil.node.publish.publishers import BatchPublisher, judged
from frazil.node.telemetry.tables import TablePublisher

ANSWERS_MAX = 1_024
"""Responses that wait for their client before the next ones are merged."""


async def put_plain(intake: Intake, context: Context, first: Received, topic: str) -> None:
    rights = intake.rights(context, topic)
    publisher = await intake.publisher(rights, topic)
    schema = received_schema(first)
    await PlainStream(intake, context, rights, publisher, schema, PlainColumns(publisher.topic, schema)).serve()


class PlainPut(Put):
    __slots__ = ("count",)

    def __init__(self, stream: PlainStream, size_bytes: int) -> None:
        super().__init__(stream, (), size_bytes)
        self.count = 0


class _Stored:
    """A response: the number of batches, and the offsets of their rows."""

    __slots__ = ("batches", "end", "first", "rows")

    def __init__(self) -> None:
        self.batches = self.rows = 0
        self.first: int | None = None
        self.end: int | None = None

    def add(self, put: PlainPut) -> None:
        self.batches += 1
        self.rows += put.count
        if put.count:
            self.first = put.offset if self.first is None else self.first
            self.end = put.offset + put.count

    def as_json(self) -> bytes:
        answer = {"batches": self.batches, "rows": self.rows, "first_offset": self.first, "end_offset": self.end}
        return as_json(answer)


class PlainStream(PuttingStream):
    def __init__(
        self,
        intake: Intake,
        context: Context,
        rights: StreamRights,
        publisher: BatchPublisher | TablePublisher,
        schema: pa.Schema,
        columns: PlainColumns | None = None,
    ) -> None:
        """Without `columns`, the publisher brings batches into the form of its topic."""
        super().__init__(intake, context, rights, publisher, schema)
        self._columns = columns
        self._stored: deque[_Stored] = deque()
        self._failed: FrazilError | None = None

    async def _answer(self, reading: asyncio.Task[None]) -> None:
        while True:
            self._collect()
            while self._stored:
                await self._context.write(PutResult(app_metadata=self._stored.popleft().as_json()))
            if self._failed is not None:
                raise self._failed
            if reading.done() and not self._begun:
                return
            await self._moved.wait()
            self._moved.clear()

    def settle(self, put: Put) -> None:
        super().settle(put)
        self._collect()

    def _collect(self) -> None:
        """Remove settled batches from the window, whether or not the client reads its responses."""
        while self._begun and self._begun[0].done and self._failed is None:
            put = self._begun.popleft()
            if put.error is not None:
                self._failed = put.error
                break
            if len(self._stored) < ANSWERS_MAX:
                self._stored.append(_Stored())
            self._stored[-1].add(put)
        self._room.set()

    def _put_of(self, data: Received) -> PlainPut:
        return PlainPut(self, data.size_bytes)

    async def _take(self, data: Received, put: PlainPut) -> None:
        if put.size_bytes > DIRECT_BYTES_MAX:
            batch = await self._intake.calls.blocking(self._rows, data)
        else:
            batch = self._rows(data)
        put.count = batch.num_rows
        if not put.count:
            put.done = True
            self._intake.let_go(put.size_bytes, self._sender)
            self._moved.set()
            return
        await self._ready(batch)
        await self._begin(batch, put)

    async def _ready(self, batch: pa.RecordBatch) -> None:
        """Check a batch before it is queued."""
        await self._publisher.check(lambda: judged(batch))

    def _rows(self, data: Received) -> pa.RecordBatch:
        batch = received_batch(data, self._schema, self._intake.settings)
        return batch if self._columns is None else self._columns.rows(batch)

    def _begin_now(self, given: pa.RecordBatch, put: PlainPut) -> None:
        put.rows = given if self._publisher.is_traced else None
        self._publisher.begin_many(given, self._intake.settled, put)
        put.begun = True
