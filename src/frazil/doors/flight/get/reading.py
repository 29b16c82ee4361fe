"""Rows returned by the Flight server: ranges of a log for movers, and topics for clients, from any start.

    {"topic", "log_id", "start", "end"}               exactly these rows of this log, all of them durable
    {"read": {"topic", "log_id", "start", "end", "follow", "notes"}}
                                                      from `start` (earliest, latest, an offset, or {"time_us"}) on

A client's stream begins with a note {"log_id", "offset", "end"}, from which it can resume after a disconnect. While
there is nothing to read it gets an empty note periodically. If the topic's columns change the stream ends, and the
client asks again. Nothing is prefetched: the next batch is read when gRPC has room for it.

A table of a tenant may be named by {"dataset", "table"} instead of the topic.

With "notes": false the stream has only batches, for stock clients, which take a message without rows for the end. They
have the columns of its begin. If the topic's columns change meanwhile, such a stream ends with an error at the first
batch with values that these columns cannot hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Annotated, Literal

import pyarrow as pa
from pydantic import Field

from frazil.core import access
from frazil.core.access import Action, Right
from frazil.core.errors import Closed, InvalidInput, OffsetOutOfRange, TopicDiffers, TryLater
from frazil.core.principal import Principal
from frazil.core.rows import OFFSET, joined
from frazil.core.rows.evolution import narrowed
from frazil.core.settings import MIB
from frazil.doors.admission import StreamRights
from frazil.doors.calls import Context
from frazil.doors.flight.calls import Calls, plain_errors
from frazil.doors.flight.get.sql import is_sql
from frazil.doors.flight.movers import parsed
from frazil.doors.flight.requests import FlightRequest
from frazil.doors.flight.targets import Targets
from frazil.doors.flight.topics import check_log
from frazil.doors.flight.wire import batch_data, note_data, schema_data
from frazil.node.node import Node
from frazil.node.types.log import BatchReader, Start, TopicLog, call_on, held_from, resolve_start

RANGES_MAX = 64
TICKET_BYTES_MAX = 4096
JOINED_BYTES_MIN = MIB // 2
"""Small available batches are joined up to about this size."""
SENT_BYTES_MAX = MIB
"""Larger batches are sent in slices, so that a slow reader holds no more."""
QUIET_SECONDS = 1.0
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class _Range(FlightRequest):
    topic: str
    log_id: str
    start: int = Field(ge=0)
    end: int = Field(gt=0)


class _Time(FlightRequest):
    time_us: int = Field(ge=-62_135_596_800_000_000, le=253_402_300_799_999_999)

    @property
    def time(self) -> datetime:
        return _EPOCH + timedelta(microseconds=self.time_us)


class Read(FlightRequest):
    topic: str | None = None
    dataset: str | None = None
    table: str | None = None
    log_id: str | None = None
    start: Literal["earliest", "latest"] | int | _Time = "earliest"
    end: Annotated[int, Field(ge=0)] | _Time | None = None
    follow: bool = False
    notes: bool = True

    def of_topic(self, topic: str) -> Read:
        """Return the same request by the name of the topic."""
        return self.model_copy(update={"topic": topic, "dataset": None, "table": None})


class ReadTicket(FlightRequest):
    read: Read


def is_read(ticket: bytes) -> bool:
    return ticket.lstrip()[:20].replace(b" ", b"").startswith(b'{"read"')


class Reading:
    def __init__(self, node: Node, calls: Calls, targets: Targets) -> None:
        self._node = node
        self._calls = calls
        self._targets = targets
        self._ranges = 0

    def rights(self, ticket: bytes) -> Sequence[Right]:
        """The rights for a ticket. A query needs none: it sees only what the caller may read."""
        if is_sql(ticket):
            return ()
        if not is_read(ticket):
            return (_right(_parsed(ticket).topic),)
        return (_right(self._topic_of(parsed(ReadTicket, ticket, "ticket", TICKET_BYTES_MAX).read)),)

    async def get(self, ticket: bytes, context: Context) -> None:
        if not is_read(ticket):
            await self._range(_parsed(ticket), context)
            return
        wanted = parsed(ReadTicket, ticket, "ticket", TICKET_BYTES_MAX).read
        if wanted.notes:
            await self._read(wanted, self._topic_of(wanted), context)
        else:
            with plain_errors():
                await self._read_plain(wanted, self._topic_of(wanted), context)

    def _topic_of(self, wanted: Read) -> str:
        return self._targets.named(wanted.topic, wanted.dataset, wanted.table, Action.READ)

    # --- a range

    async def _range(self, wanted: _Range, context: Context) -> None:
        rights = self._calls.rights(context, wanted.topic, _right(wanted.topic))
        rights.check()
        log = await self._calls.blocking(self._log_of, rights.who, wanted)
        if self._ranges >= RANGES_MAX:
            self._calls.counts.refuse()
            raise TryLater(f"{RANGES_MAX} ranges are being read; try again later", limit=RANGES_MAX)
        self._ranges += 1
        reader = BatchReader(log, wanted.start, wanted.end)
        try:
            with rights.open(_nothing), self._calls.counts.a_stream():
                schema = pa.schema([OFFSET, *log.schema])
                await context.write(schema_data(schema))
                while not reader.finished:
                    self._calls.check_open()
                    batch = await self._poll(reader)
                    if batch is not None:
                        await rights.give(batch.nbytes)
                        self._calls.counts.sent(batch.num_rows)
                        await context.write(batch_data(batch if batch.schema.equals(schema) else batch.cast(schema)))
        finally:
            reader.close()
            self._ranges -= 1

    def _log_of(self, caller: Principal, wanted: _Range) -> TopicLog:
        """Return the requested log if it has the whole range; raises the reason otherwise."""
        log = self._node.topic(caller, wanted.topic).log
        if log.log_id != wanted.log_id:
            raise InvalidInput(
                f"{wanted.topic} is another log now: it has the id {log.log_id}, not {wanted.log_id}",
                topic=wanted.topic,
                log_id=log.log_id,
            )
        first = log.first_offset
        if wanted.start < first:
            first = held_from(first, log.colder.objects())
        if wanted.start < first or wanted.end > log.durable_end:
            beyond = wanted.start if wanted.start < first else wanted.end - 1
            raise OffsetOutOfRange(wanted.topic, beyond, first, log.durable_end)
        return log

    # --- a client's stream

    async def _read(self, wanted: Read, topic: str, context: Context) -> None:
        rights = self._calls.rights(context, topic, _right(topic))
        rights.check()
        with self._calls.stream(), rights.open(_nothing):
            log, reader = await self._calls.reading(self._reader_of, rights.who, topic, wanted)
            try:
                schema = pa.schema([OFFSET, *log.schema])
                await context.write(schema_data(schema))
                await context.write(note_data({"log_id": log.log_id, "offset": reader.offset, "end": reader.end}))
                async for batch in self._batches(log, reader, rights):
                    if batch is None:
                        await context.write(note_data({}))
                    elif not batch.schema.equals(schema):
                        return
                    else:
                        self._calls.counts.sent(batch.num_rows)
                        for part in _slices(batch):
                            rights.check()  # a slow reader may take long for the parts before
                            await context.write(batch_data(part))
                await context.write(note_data({"offset": reader.offset}))  # the last rows may be accepted as missing
            finally:
                reader.close()

    async def _read_plain(self, wanted: Read, topic: str, context: Context) -> None:
        """For a stock client: batches of one schema."""
        rights = self._calls.rights(context, topic, _right(topic))
        rights.check()
        with self._calls.stream(), rights.open(_nothing):
            log, reader = await self._calls.reading(self._reader_of, rights.who, topic, wanted)
            try:
                schema = pa.schema([OFFSET, *log.schema])
                await context.write(schema_data(schema))
                async for batch in self._batches(log, reader, rights):
                    if batch is None:
                        continue
                    if not batch.schema.equals(schema):
                        batch = _as_begun(log, batch, schema)  # noqa: PLW2901
                    self._calls.counts.sent(batch.num_rows)
                    for part in _slices(batch):
                        rights.check()
                        await context.write(batch_data(part))
            finally:
                reader.close()

    def _reader_of(self, caller: Principal, topic: str, wanted: Read) -> tuple[TopicLog, BatchReader]:
        log = self._node.topic(caller, topic).log
        check_log(log, wanted.log_id, wanted.start if isinstance(wanted.start, int) else None)
        start: Start = wanted.start.time if isinstance(wanted.start, _Time) else wanted.start
        return log, BatchReader(log, resolve_start(log, start), end_of(log, wanted), follow=wanted.follow)

    async def _batches(
        self, log: TopicLog, reader: BatchReader, rights: StreamRights
    ) -> AsyncIterator[pa.RecordBatch | None]:
        """Yields None periodically while there is nothing. Ends with an error once the caller may not read any more."""
        while not reader.finished:
            self._calls.check_open()
            batch = await self._poll(reader)
            if batch is not None:
                found = self._with_more(reader, batch)
                await rights.give(found.nbytes)
                yield found
            elif reader.waits and not await self._more(log, reader):
                rights.check()
                yield None

    def _with_more(self, reader: BatchReader, first: pa.RecordBatch) -> pa.RecordBatch:
        """Add cached batches while the total is small: a batch costs more than its rows."""
        found, size = [first], first.nbytes
        while size < JOINED_BYTES_MIN and (more := reader.poll(cached_only=True)) is not None:
            if not more.schema.equals(first.schema):
                reader.offset -= more.num_rows
                break
            found.append(more)
            size += more.nbytes
        return joined(found)

    async def _poll(self, reader: BatchReader) -> pa.RecordBatch | None:
        batch = reader.poll(cached_only=True)
        if batch is None and not reader.waits:
            batch = await self._calls.reading(reader.poll)
        return batch

    async def _more(self, log: TopicLog, reader: BatchReader) -> bool:
        """Register, check again, and only then wait, so that no change of the end is missed. Returns False after a
        quiet period."""
        more = asyncio.Event()

        def wake() -> None:
            call_on(self._calls.loop, more.set)

        log.tail.add(wake)
        with self._calls.until_end(more.set):
            try:
                if reader.waits:
                    if log.closed:
                        raise Closed(f"the log of {log.name}")
                    self._calls.check_open()
                    await asyncio.wait_for(more.wait(), QUIET_SECONDS)
            except TimeoutError:
                return False
            finally:
                log.tail.discard(wake)
        return True


def end_of(log: TopicLog, wanted: Read) -> int | None:
    """Return the end of a request as an offset. A time ends before the first row that was appended at or after it."""
    if not isinstance(wanted.end, _Time):
        return wanted.end
    if wanted.follow:
        raise InvalidInput("end: a time can't end a request that follows; give an offset, or none", field="end")
    return resolve_start(log, wanted.end.time)


def _as_begun(log: TopicLog, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows in the form in which a stream has begun; raises `TopicDiffers` if they have values of new columns."""
    found = narrowed(batch, schema)
    if found is None:
        raise TopicDiffers(str(log.name), "its columns were changed while it was read; ask again")
    return found


def _right(topic: str) -> Right:
    return Right(Action.READ, access.topic(topic))


def _nothing() -> None:
    """A reader's rights are checked between its batches."""


def _slices(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    if batch.nbytes <= SENT_BYTES_MAX:
        return [batch]
    rows = max(1, batch.num_rows * SENT_BYTES_MAX // batch.nbytes)
    return [batch.slice(start, rows) for start in range(0, batch.num_rows, rows)]


def _parsed(ticket: bytes) -> _Range:
    wanted = parsed(_Range, ticket, "ticket", TICKET_BYTES_MAX)
    if wanted.start >= wanted.end:
        raise InvalidInput(f"the ticket's range is empty: {wanted.start} up to {wanted.end}")
    return wanted
