"""What all calls of the Flight door share: errors as Flight's own, limits on streams, and threads for what blocks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NoReturn, TypeVar

import grpc

from frazil.core.errors import AnotherLeads, Closed, FrazilError, InvalidInput, LogFailed, TryLater
from frazil.serve.metrics_flight import FlightCounts
from frazil.serve.request_ids import HEADER, begin
from frazil.serve.threads import Threads

THREADS_MAX = 8
FIRST_SECONDS_MAX = 5.0
_ARROW_IO_ERROR = "5"

_log = logging.getLogger("frazil.serve")

Context = Any
"""gRPC's, which is generic only for type checkers that have its stubs."""
Answer = TypeVar("Answer")


class Calls:
    """Made and used on one event loop."""

    def __init__(self, streams_max: int, counts: FlightCounts) -> None:
        self.counts = counts
        self._threads = Threads("frazil-flight", THREADS_MAX)
        self._streams_max = streams_max
        self._streams = 0
        self._ends: set[Callable[[], None]] = set()
        self.loop = asyncio.get_running_loop()
        self.ending = False

    async def blocking(self, work: Callable[..., Answer], *arguments: Any, **named: Any) -> Answer:
        """What waits for a disk or takes long, outside of the loop."""
        return await self._threads.run(work, *arguments, **named)

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        self.check_open()
        if self._streams >= self._streams_max:
            self.counts.refuse()
            raise TryLater(
                f"{self._streams} streams are open, and streams_max = {self._streams_max}; try again later",
                limit=self._streams_max,
            )
        self._streams += 1
        try:
            with self.counts.a_stream():
                yield
        finally:
            self._streams -= 1

    @contextlib.contextmanager
    def until_end(self, end: Callable[[], None]) -> Iterator[None]:
        """`end` is called when the door closes meanwhile."""
        self._ends.add(end)
        try:
            yield
        finally:
            self._ends.discard(end)

    def check_open(self) -> None:
        if self.ending:
            raise Closed("the Flight door")

    def end_streams(self) -> None:
        self.ending = True
        for end in list(self._ends):
            end()

    def close(self) -> None:
        self._threads.close()


async def first_of(context: Context) -> Any:
    """What a stream is for, which its client says at once: until then it takes no place of others."""
    try:
        return checked(await asyncio.wait_for(context.read(), FIRST_SECONDS_MAX))
    except TimeoutError:
        raise TryLater(
            f"the stream did not say within {FIRST_SECONDS_MAX:.0f} s what it is for", limit_seconds=FIRST_SECONDS_MAX
        ) from None


async def answered(context: Context, work: Awaitable[None]) -> None:
    """One call, with its id. A client that has gone is not written to, and not written about."""
    asked = begin(context.invocation_metadata())
    try:
        if asked.is_given:
            await context.send_initial_metadata(((HEADER, asked.id),))
        await _told(context, work)
    except grpc.aio.AbortError:
        raise
    except grpc.aio.BaseError:
        raise asyncio.CancelledError from None


async def _told(context: Context, work: Awaitable[None]) -> None:
    """Errors as Flight's own, with the message and our fields as JSON; of others a client is told nothing."""
    try:
        await work
    except FrazilError as error:
        await _refuse(context, error)
    except grpc.aio.BaseError:
        raise
    except Exception:  # noqa: BLE001 - whatever it was is for our log, not for a client
        _log.exception("a Flight call failed")
        await context.abort(grpc.StatusCode.INTERNAL, "an error of Frazil's own; its log says more")


async def _refuse(context: Context, error: FrazilError) -> NoReturn:
    code = grpc.StatusCode.UNKNOWN
    if isinstance(error, TryLater | Closed) and not isinstance(error, AnotherLeads):
        code = grpc.StatusCode.UNAVAILABLE
    elif isinstance(error, LogFailed):
        code = grpc.StatusCode.INTERNAL
    told = (
        ("x-arrow-status", _ARROW_IO_ERROR),
        ("x-arrow-status-message-bin", error.message.encode()),
        ("grpc-status-details-bin", as_json(error.as_dict())),
    )
    await context.abort(code, error.message, told)
    raise asyncio.CancelledError  # abort never returns


def as_json(value: Any) -> bytes:
    return json.dumps(value, default=str).encode()


def reader_of(kind: Any) -> Callable[[bytes], Any]:
    """What can't be read is a bad call and no failure of the server, as gRPC would take it for."""

    def read(data: bytes) -> Any:
        try:
            return kind.FromString(data)
        except Exception:  # noqa: BLE001 - Protobuf's own DecodeError, and whatever its C code makes of hostile bytes
            return InvalidInput(f"the request is no {kind.DESCRIPTOR.name}", field="request")

    return read


def checked(message: Any) -> Any:
    if isinstance(message, InvalidInput):
        raise message
    return message
