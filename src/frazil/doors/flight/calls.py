"""Shared parts of all Flight calls: error mapping, limits on streams, and threads for blocking work."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc

from frazil.core.access import Right
from frazil.core.errors import Closed, FrazilError, QuotaExceeded, TryLater
from frazil.core.principal import Principal
from frazil.doors.admission import StreamRights, who
from frazil.doors.calls import Context, ErrorStatus, Refused, checked, grpc_status
from frazil.doors.errors import status_of
from frazil.doors.flight.metrics import FlightCounts
from frazil.doors.owning import Owning
from frazil.node.access.quotas import RETRY_AFTER_MS
from frazil.node.node import Node
from frazil.node.threads import Threads

THREADS_MAX = 8
READING_THREADS_MAX = 16
"""Reads of files and tables have their own threads: a store that hangs must not block publishers."""
FIRST_SECONDS_MAX = 5.0
ERROR_TRAILER = "frazil-error-bin"
"""Code, message and fields of an error as JSON, for stock clients that want more than a status."""
_ARROW_IO_ERROR = "5"

Answer = TypeVar("Answer")


class Calls:
    """Created and used on one event loop."""

    def __init__(self, streams_max: int, counts: FlightCounts, node: Node) -> None:
        self.counts = counts
        self.gate = node.gate
        self.owning = Owning(node)
        self._threads = Threads("frazil-flight", THREADS_MAX)
        self._reading = Threads("frazil-flight-read", READING_THREADS_MAX)
        self._node = node
        self._streams_max = streams_max
        self._streams = 0
        self._by_tenant: Counter[str] = Counter()
        self._ends: set[Callable[[], None]] = set()
        self.loop = asyncio.get_running_loop()
        self.ending = False

    async def blocking(self, work: Callable[..., Answer], *arguments: Any, **named: Any) -> Answer:
        """Run work that blocks or takes long outside of the loop."""
        return await self._threads.run(work, *arguments, **named)

    async def reading(self, work: Callable[..., Answer], *arguments: Any, **named: Any) -> Answer:
        """Run a read of rows, from a tier that may hang, outside of the loop."""
        return await self._reading.run(work, *arguments, **named)

    def rights(self, context: Context, topic: str, *needed: Right) -> StreamRights:
        """Return the rights of a stream of one topic, to be checked again for each batch."""
        return StreamRights(self.gate, who(), context.peer(), needed, self.owning.place(topic))

    def account(self, caller: Principal) -> str:
        """Return on whose account a call is, where callers share what the door has: the tenant's, else its own."""
        tenant = self._node.telemetry(caller).own_tenant(caller)
        return caller.name if tenant is None else f"tenant:{tenant}"

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        """Count a stream. The principals of one tenant together leave room for the others."""
        self.check_open()
        caller = who()
        tenant = self._node.telemetry(caller).own_tenant(caller)
        if tenant is not None and self._by_tenant[tenant] >= max(1, self._streams_max // 2):
            self.counts.refuse()
            raise QuotaExceeded(f"tenant:{tenant}", "concurrent streams", self._streams_max // 2, RETRY_AFTER_MS)
        if self._streams >= self._streams_max:
            self.counts.refuse()
            raise TryLater(
                f"{self._streams} streams are open, and streams_max = {self._streams_max}; try again later",
                limit=self._streams_max,
            )
        self._streams += 1
        self._by_tenant[tenant or ""] += 1
        try:
            with self.counts.a_stream():
                yield
        finally:
            self._streams -= 1
            self._by_tenant -= Counter((tenant or "",))

    @contextlib.contextmanager
    def until_end(self, end: Callable[[], None]) -> Iterator[None]:
        """Call `end` if the server closes meanwhile."""
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
        self._reading.close()


async def first_of(context: Context) -> Any:
    """Read the purpose of a stream, which its client sends first: until then it does not count towards the limit."""
    try:
        return checked(await asyncio.wait_for(context.read(), FIRST_SECONDS_MAX))
    except TimeoutError:
        raise TryLater(
            f"the stream did not say within {FIRST_SECONDS_MAX:.0f} s what it is for", limit_seconds=FIRST_SECONDS_MAX
        ) from None


def arrow_status(error: FrazilError) -> ErrorStatus:
    """Map an error as Arrow's servers do, with its fields as JSON, which PyArrow returns as `extra_info`."""
    trailers = (
        ("x-arrow-status", _ARROW_IO_ERROR),
        ("x-arrow-status-message-bin", error.message.encode()),
        ("grpc-status-details-bin", as_json(error.as_dict())),
    )
    return ErrorStatus(grpc.StatusCode[status_of(error).flight], trailers)


def plain_status(error: FrazilError) -> ErrorStatus:
    """Map an error for stock clients to a plain gRPC status. With Arrow's headers, PyArrow would raise an internal
    error for most of them."""
    return ErrorStatus(grpc_status(error).status, ((ERROR_TRAILER, as_json(error.as_dict())),))


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Use plain statuses for errors within: the part of a call that only stock clients use."""
    try:
        yield
    except FrazilError as error:
        raise Refused(error, plain_status) from None


def as_json(value: Any) -> bytes:
    return json.dumps(value, default=str).encode()
