"""SQL queries, answered as rows: the ticket is {"sql": {"query", "snapshot", "at"}}.

Each runs in its own process, `frazil sql`: a query may use all its memory and time, and must not affect publishers. It
sees only the topics and no other file of this host, and ends with its caller, or with the server. It waits for a slow
caller, but no longer than the time limit of a query.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import pyarrow as pa
from pydantic import Field

from frazil.core.errors import QueryTooLong, QuotaExceeded, TryLater
from frazil.core.errors.codec import from_dict
from frazil.core.principal import LOCAL, Principal
from frazil.doors.admission import QueryRights, credentials, who
from frazil.doors.calls import Context
from frazil.doors.flight.calls import Calls
from frazil.doors.flight.movers import parsed
from frazil.doors.flight.requests import FlightRequest
from frazil.doors.flight.wire import batch_data, schema_data
from frazil.doors.tls import tls_of
from frazil.node.jobs.verbs import failure_of
from frazil.node.node import Node
from frazil.node.query.process import SqlProcess
from frazil.node.tiers.cluster_logs import ForwardedCaller

QUERIES_MAX = 4
QUERIES_OF_CALLER_MAX = 2
"""With security on: one caller leaves room for the others."""
TICKET_BYTES_MAX = 64 * 1024
RETRY_AFTER_MS = 1_000

Answer = TypeVar("Answer")


_WORD = r"^[^\x00]+$"
"""Valid process arguments."""


class _Question(FlightRequest):
    query: str = Field(pattern=_WORD)
    snapshot: int | None = Field(None, ge=-(2**63), lt=2**63)
    at: str | None = Field(None, max_length=64, pattern=_WORD)


class _Ticket(FlightRequest):
    sql: _Question


def is_sql(ticket: bytes) -> bool:
    return ticket.lstrip()[:20].replace(b" ", b"").startswith(b'{"sql"')


class SqlAnswers:
    """Created and used on one event loop."""

    def __init__(self, node: Node, calls: Calls, seconds_max: int) -> None:
        self._node = node
        self._seconds_max = seconds_max
        self._calls = calls
        self._running = 0
        self._by_caller: Counter[str] = Counter()
        self._threads = ThreadPoolExecutor(QUERIES_MAX, "frazil-sql")

    async def get(self, ticket: bytes, context: Context) -> None:
        asked = parsed(_Ticket, ticket, "ticket", TICKET_BYTES_MAX).sql
        if self._running >= QUERIES_MAX:
            self._calls.counts.refuse()
            raise TryLater(f"{QUERIES_MAX} queries run, and no more may; try again later", limit=QUERIES_MAX)
        caller = who()
        account = self._calls.account(caller)
        if self._calls.gate.is_on and caller is not LOCAL and self._by_caller[account] >= QUERIES_OF_CALLER_MAX:
            raise QuotaExceeded(caller.name, "concurrent queries", QUERIES_OF_CALLER_MAX, RETRY_AFTER_MS)
        self._running += 1
        self._by_caller[account] += 1
        try:
            rights = QueryRights(self._calls.gate, caller, context.peer())
            rights.admit()
            with self._calls.stream():
                query = await self._started(rights.who, asked, self._forwarded(rights.who, context))
                try:
                    with rights.open(query.kill), self._calls.until_end(query.kill):
                        await self._answer_in_time(query, context, rights)
                finally:
                    query.kill()
                    # submitted before anything is awaited: it runs even if this call and its loop end first
                    closing = self._threads.submit(query.close)
                    await asyncio.shield(asyncio.wrap_future(closing))
        finally:
            self._running -= 1
            self._by_caller -= Counter((account,))

    async def _answer_in_time(self, query: SqlProcess, context: Context, rights: QueryRights) -> None:
        try:
            async with asyncio.timeout(self._seconds_max):
                await self._answer(query, context, rights)
        except TimeoutError:
            raise QueryTooLong(self._seconds_max, "flight.query_seconds_max") from None

    async def _answer(self, query: SqlProcess, context: Context, rights: QueryRights) -> None:
        reader = await self._in_thread(query.opened)
        if reader is not None:
            await context.write(schema_data(reader.schema))
            while (batch := await self._in_thread(_next, reader)) is not None:
                await rights.give(batch.nbytes)
                self._calls.counts.sent(batch.num_rows)
                await context.write(batch_data(batch))
        code = await self._in_thread(query.child.wait)
        self._calls.check_open()
        if code != 0 or reader is None:
            error = from_dict(await self._in_thread(failure_of, query.child, code, "query"))
            rights.refused(str(error.fields.get("table", "")))
            raise error

    async def _started(self, caller: Principal, asked: _Question, forwarded: ForwardedCaller | None) -> SqlProcess:
        """Start a query. If the caller leaves meanwhile, the thread that has started it ends it."""
        starting = self._threads.submit(
            self._node.query, caller, asked.query, snapshot=asked.snapshot, at=asked.at, forwarded=forwarded
        )
        try:
            return await asyncio.wrap_future(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(lambda done: self._threads.submit(_end, done))
            raise

    def _forwarded(self, caller: Principal, context: Context) -> ForwardedCaller | None:
        """Return with what the query asks other brokers. None: with nothing, as for a caller with a certificate, whose
        key only the caller has, and for one with the token of this host, which must not leave it."""
        if not self._calls.gate.is_on:
            return ForwardedCaller()
        given = credentials(context)
        scheme, _, token = (given.authorization or "").partition(" ")
        if caller is LOCAL or given.certificate is not None or scheme.lower() != "bearer":
            return None
        settings = self._node.settings
        return ForwardedCaller(token.strip(), needs_tls=tls_of(settings, settings.flight).is_on)

    async def _in_thread(self, work: Callable[..., Answer], *arguments: Any) -> Answer:
        return await self._calls.loop.run_in_executor(self._threads, work, *arguments)


def _end(starting: Future[SqlProcess]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        query = starting.result()
        query.kill()
        query.close()


def _next(reader: pa.RecordBatchReader) -> pa.RecordBatch | None:
    """Return None at the end; the exit code distinguishes it from a failure."""
    try:
        return reader.read_next_batch()
    except (StopIteration, pa.ArrowException, OSError):
        return None
