"""Questions in SQL, answered as rows: the ticket is {"sql": {"query", "snapshot", "at"}}.

Each is a process of its own, `frazil sql`: a query may take all the memory and time it gets, and those who publish must
not feel it. It sees the topics and no other file of this host, and ends with its caller, or with us. It waits for a
caller that is slow, but no longer than a query may take.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, TypeVar

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from frazil.core.error_forms import from_dict
from frazil.core.errors import InvalidInput, QueryTooLong, TryLater
from frazil.serve.flight_calls import Calls, Context
from frazil.serve.flight_wire import batch_data, schema_data
from frazil.serve.movers import parsed
from frazil.serve.verbs import failure_of

QUERIES_MAX = 4
TICKET_BYTES_MAX = 64 * 1024

Answer = TypeVar("Answer")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


_WORD = r"^[^\x00]+$"
"""What a process can be given as a word."""


class _Question(_Frozen):
    query: str = Field(pattern=_WORD)
    snapshot: int | None = Field(None, ge=-(2**63), lt=2**63)
    at: str | None = Field(None, max_length=64, pattern=_WORD)


class _Ticket(_Frozen):
    sql: _Question


def is_sql(ticket: bytes) -> bool:
    return ticket.lstrip()[:20].replace(b" ", b"").startswith(b'{"sql"')


class SqlAnswers:
    """Made and used on one event loop."""

    def __init__(self, command: Sequence[str] | None, calls: Calls, seconds_max: int) -> None:
        self._command = command
        self._seconds_max = seconds_max
        self._calls = calls
        self._running = 0
        self._threads = ThreadPoolExecutor(QUERIES_MAX, "frazil-sql")

    async def get(self, ticket: bytes, context: Context) -> None:
        asked = parsed(_Ticket, ticket, "ticket", TICKET_BYTES_MAX).sql
        if self._command is None:
            raise InvalidInput("sql: only `frazil serve` answers it")
        if self._running >= QUERIES_MAX:
            self._calls.counts.refuse()
            raise TryLater(f"{QUERIES_MAX} queries run, and no more may; try again later", limit=QUERIES_MAX)
        self._running += 1
        try:
            with self._calls.stream():
                query = await self._in_thread(_Query, [*self._command, *_words(asked)])
                try:
                    with self._calls.until_end(query.kill):
                        await self._answer_in_time(query, context)
                finally:
                    query.kill()
                    await asyncio.shield(self._in_thread(query.close))
        finally:
            self._running -= 1

    async def _answer_in_time(self, query: _Query, context: Context) -> None:
        try:
            async with asyncio.timeout(self._seconds_max):
                await self._answer(query, context)
        except TimeoutError:
            raise QueryTooLong(self._seconds_max, "flight.query_seconds_max") from None

    async def _answer(self, query: _Query, context: Context) -> None:
        reader = await self._in_thread(query.opened)
        if reader is not None:
            await context.write(schema_data(reader.schema))
            while (batch := await self._in_thread(_next, reader)) is not None:
                self._calls.counts.sent(batch.num_rows)
                await context.write(batch_data(batch))
        code = await self._in_thread(query.process.wait)
        self._calls.check_open()
        if code != 0 or reader is None:
            raise from_dict(await self._in_thread(failure_of, query.errors, code, "query"))

    async def _in_thread(self, work: Callable[..., Answer], *arguments: Any) -> Answer:
        return await self._calls.loop.run_in_executor(self._threads, work, *arguments)


def _words(asked: _Question) -> list[str]:
    given = [] if asked.snapshot is None else ["--snapshot", str(asked.snapshot)]
    given += [] if asked.at is None else ["--at", asked.at]
    return [*given, "--", asked.query]


class _Query:
    """The process that answers, with a folder of its own for what does not fit into memory. All of it blocks."""

    def __init__(self, command: Sequence[str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="frazil-sql-")
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the rest
        self.process = subprocess.Popen(  # noqa: S603 - our own program
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env={**os.environ, "TMPDIR": self._folder.name, "ARROW_DEFAULT_MEMORY_POOL": "system"},
            start_new_session=True,
        )

    def opened(self) -> pa.RecordBatchReader | None:
        """None where it ended before it had an answer."""
        try:
            return pa.ipc.open_stream(self.process.stdout)
        except (pa.ArrowException, OSError):
            return None

    def kill(self) -> None:
        self.process.kill()  # nothing if it has ended

    def close(self) -> None:
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.errors):
            if pipe is not None:
                pipe.close()
        self._folder.cleanup()


def _next(reader: pa.RecordBatchReader) -> pa.RecordBatch | None:
    """None at the end, which its exit code tells apart from a failure."""
    try:
        return reader.read_next_batch()
    except (StopIteration, pa.ArrowException, OSError):
        return None
