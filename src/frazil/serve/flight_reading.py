"""What the Flight door hands out: ranges of a log for movers, and topics for clients, from any start on.

    {"topic", "log_id", "start", "end"}               exactly these rows of this log, all of them durable
    {"read": {"topic", "log_id", "start", "end", "follow"}}
                                                      from `start` (earliest, latest, an offset, or {"time_us"}) on

A client's stream begins with a note {"log_id", "offset", "end"}, from which it can ask again where it was cut. While
there is nothing to read it gets an empty note now and then. If the topic's columns change the stream ends, and the
client asks again. Nothing is read ahead: the next batch is taken when gRPC has room for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone
from typing import Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from frazil.core.errors import Closed, InvalidInput, OffsetOutOfRange, TryLater
from frazil.core.rows import OFFSET, joined
from frazil.core.settings import MIB
from frazil.log.group import call_on
from frazil.log.positions import Start, resolve_start
from frazil.log.reader import BatchReader
from frazil.log.storage import Storage
from frazil.log.topic_log import TopicLog
from frazil.serve.flight_calls import Calls, Context
from frazil.serve.flight_topics import check_log
from frazil.serve.flight_wire import batch_data, note_data, schema_data
from frazil.serve.movers import parsed

RANGES_MAX = 64
TICKET_BYTES_MAX = 4096
JOINED_BYTES_MIN = MIB // 2
"""Small batches that are there already go out together, up to about this size."""
SENT_BYTES_MAX = MIB
"""Larger ones go out in slices, so that a slow reader holds no more."""
QUIET_SECONDS = 1.0
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _Range(_Frozen):
    topic: str
    log_id: str
    start: int = Field(ge=0)
    end: int = Field(gt=0)


class _Time(_Frozen):
    time_us: int = Field(ge=-62_135_596_800_000_000, le=253_402_300_799_999_999)


class _Read(_Frozen):
    topic: str
    log_id: str | None = None
    start: Literal["earliest", "latest"] | int | _Time = "earliest"
    end: int | None = Field(None, ge=0)
    follow: bool = False


class _Ticket(_Frozen):
    read: _Read


class Reading:
    def __init__(self, storage: Storage, calls: Calls) -> None:
        self._storage = storage
        self._calls = calls
        self._ranges = 0

    async def get(self, ticket: bytes, context: Context) -> None:
        if ticket.lstrip()[:20].replace(b" ", b"").startswith(b'{"read"'):
            await self._read(parsed(_Ticket, ticket, "ticket", TICKET_BYTES_MAX).read, context)
        else:
            await self._range(_parsed(ticket), context)

    # --- a range

    async def _range(self, wanted: _Range, context: Context) -> None:
        log = await self._calls.blocking(self._log_of, wanted)
        if self._ranges >= RANGES_MAX:
            self._calls.counts.refuse()
            raise TryLater(f"{RANGES_MAX} ranges are being read; try again later", limit=RANGES_MAX)
        self._ranges += 1
        reader = BatchReader(log, wanted.start, wanted.end)
        try:
            with self._calls.counts.a_stream():
                schema = pa.schema([OFFSET, *log.schema])
                await context.write(schema_data(schema))
                while not reader.finished:
                    self._calls.check_open()
                    batch = await self._poll(reader)
                    if batch is not None:
                        self._calls.counts.sent(batch.num_rows)
                        await context.write(batch_data(batch if batch.schema.equals(schema) else batch.cast(schema)))
        finally:
            reader.close()
            self._ranges -= 1

    def _log_of(self, wanted: _Range) -> TopicLog:
        """The log asked for, which has the whole range, or the reason why not."""
        log = self._storage.topic(wanted.topic, create=False).log
        if log.log_id != wanted.log_id:
            raise InvalidInput(
                f"{wanted.topic} is another log now: it has the id {log.log_id}, not {wanted.log_id}",
                topic=wanted.topic,
                log_id=log.log_id,
            )
        if wanted.start < log.first_offset or wanted.end > log.durable_end:
            beyond = wanted.start if wanted.start < log.first_offset else wanted.end - 1
            raise OffsetOutOfRange(wanted.topic, beyond, log.first_offset, log.durable_end)
        return log

    # --- a client's stream

    async def _read(self, wanted: _Read, context: Context) -> None:
        with self._calls.stream():
            log, reader = await self._calls.blocking(self._reader_of, wanted)
            try:
                schema = pa.schema([OFFSET, *log.schema])
                await context.write(schema_data(schema))
                await context.write(note_data({"log_id": log.log_id, "offset": reader.offset, "end": reader.end}))
                async for batch in self._batches(log, reader):
                    if batch is None:
                        await context.write(note_data({}))
                    elif not batch.schema.equals(schema):
                        return
                    else:
                        self._calls.counts.sent(batch.num_rows)
                        for part in _slices(batch):
                            await context.write(batch_data(part))
                await context.write(note_data({"offset": reader.offset}))  # the last rows may be accepted as missing
            finally:
                reader.close()

    def _reader_of(self, wanted: _Read) -> tuple[TopicLog, BatchReader]:
        log = self._storage.topic(wanted.topic, create=False).log
        check_log(log, wanted.log_id, wanted.start if isinstance(wanted.start, int) else None)
        start: Start
        if isinstance(wanted.start, _Time):
            start = _EPOCH + timedelta(microseconds=wanted.start.time_us)
        else:
            start = wanted.start
        return log, BatchReader(log, resolve_start(log, start), wanted.end, follow=wanted.follow)

    async def _batches(self, log: TopicLog, reader: BatchReader) -> AsyncIterator[pa.RecordBatch | None]:
        """None now and then while there is nothing."""
        while not reader.finished:
            self._calls.check_open()
            batch = await self._poll(reader)
            if batch is not None:
                yield self._with_more(reader, batch)
            elif reader.waits and not await self._more(log, reader):
                yield None

    def _with_more(self, reader: BatchReader, first: pa.RecordBatch) -> pa.RecordBatch:
        """What is in the cache behind it, while that is small: a batch costs more than its rows."""
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
            batch = await self._calls.blocking(reader.poll)
        return batch

    async def _more(self, log: TopicLog, reader: BatchReader) -> bool:
        """Register, look again, and only then wait: so no move of the end is missed. False after a quiet while."""
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
