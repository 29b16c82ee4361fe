"""Appends what Frazil tells of itself to the tenant `_frazil`, through the Node, in this process.

Everything waits in bounded queues. A task takes it now and then; what the node refuses is dropped and counted, and
nothing is tried again: an overloaded node must not get more work from this. Publishers are never delayed.

In a cluster the dataset is the id of the broker, since a topic has one owner. Otherwise it is `default`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import frazil
from frazil.core.clock import Clock
from frazil.core.errors import FrazilError, TenantNotFound
from frazil.core.principal import LOCAL
from frazil.core.settings import Settings
from frazil.node.telemetry.own.handler import TENANT, OwnLogHandler, exporting
from frazil.node.telemetry.own.queues import OwnCounts, OwnQueue
from frazil.node.telemetry.places import TenantPlace
from frazil.telemetry.own.logs import OwnRecord, log_request
from frazil.telemetry.own.metrics import Family, OwnTimes, metrics_request
from frazil.telemetry.signals import DEFAULT_DATASET, NAME_LENGTH_MAX, Signal

if TYPE_CHECKING:
    from frazil.node.node import Node

FLUSH_SECONDS = 1.0
EXPORT_SECONDS_MAX = 10.0
STOP_SECONDS_MAX = 5.0
LOGS_BYTES_MAX, SPANS_BYTES_MAX = 8 << 20, 8 << 20
RECORDS_MAX, REQUESTS_MAX = 1_000, 64
"""Log records of a request, and requests of spans that are appended in one turn."""
STOPPED = "stopped"
"""Why items are dropped that were not stored in time when the process stopped; those on their way may be stored."""
_NOT_IN_NAMES = re.compile(r"[^a-z0-9_-]")

_log = logging.getLogger("frazil.telemetry")

Collect = Callable[[], Iterable[Family]]


class OwnSpans(NamedTuple):
    request: bytes
    spans: int


class OwnTelemetry:
    """`put_spans` and the handler may be called from any thread, also before the node has started."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._interval_us = settings.telemetry.own_interval_ms * 1_000
        self._clock = clock
        self._started_ns = clock.now_us() * 1_000
        self._resource: Mapping[str, Any] = {}
        self._place = TenantPlace(TENANT, DEFAULT_DATASET)
        self._node: Node | None = None
        self.counts = OwnCounts()
        self._records: OwnQueue[OwnRecord] = OwnQueue(Signal.LOGS, LOGS_BYTES_MAX, self.counts)
        self._spans: OwnQueue[OwnSpans] = OwnQueue(Signal.TRACES, SPANS_BYTES_MAX, self.counts)
        self.handler = OwnLogHandler(self._records, self.counts)
        self.collect: Collect | None = None
        """Returns the metrics. The owner of the registry sets it."""
        self.flush_spans: Callable[[], object] = lambda: None
        """Puts the spans that have ended. Blocks."""
        self._measured_us = clock.monotonic_us()

    def put_spans(self, request: bytes, spans: int) -> None:
        self._spans.put(OwnSpans(request, spans), len(request), spans)

    @contextlib.asynccontextmanager
    async def running(self, node: Node) -> AsyncIterator[None]:
        """Append what waits until the context ends, and then the rest. `node` has its tenants open."""
        self._node = node
        broker = node.ownership(LOCAL).broker_id
        if node.ownership(LOCAL).is_clustered:
            name = _NOT_IN_NAMES.sub("_", broker.lower()).lstrip("-")[:NAME_LENGTH_MAX]
            self._place = TenantPlace(TENANT, name or DEFAULT_DATASET)
        self._resource = {
            "service.name": "frazil",
            "service.version": frazil.__version__,
            "service.instance.id": broker,
            "frazil.broker_id": broker,
        }
        logging.getLogger().addHandler(self.handler)
        ending = asyncio.Event()
        task = asyncio.create_task(self._run(ending), name="frazil's own telemetry")
        try:
            yield
        finally:
            logging.getLogger().removeHandler(self.handler)
            ending.set()
            await self._finish(task)

    async def _run(self, ending: asyncio.Event) -> None:
        """A turn that has begun is ended: nobody else has what it took from the queues."""
        exporting.set(True)
        await self._prepare()
        while not await _is_set_within(ending, FLUSH_SECONDS):
            await self._turn()
            if self._clock.monotonic_us() - self._measured_us >= self._interval_us:
                self._measured_us = self._clock.monotonic_us()
                await self._measure()

    async def _finish(self, task: asyncio.Task[None]) -> None:
        token = exporting.set(True)
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await task
                await asyncio.to_thread(self.flush_spans)
                await self._measure()
                while await self._turn():
                    pass
        except TimeoutError:
            _log.warning("the last log records, metrics and spans of this process were not stored in time")
        finally:
            exporting.reset(token)
            self._records.drop(STOPPED)
            self._spans.drop(STOPPED)

    async def _turn(self) -> bool:
        """Append what waits, as one request of log records and some of spans; whether there was any."""
        records = self._records.take(RECORDS_MAX)
        if records:
            with self._counted(Signal.LOGS, len(records)):
                request = await asyncio.to_thread(log_request, records, self._resource, frazil.__version__)
                await self._export(Signal.LOGS, request, len(records))
        for number in range(REQUESTS_MAX):
            if not (taken := self._spans.take(1)):
                return bool(records or number)
            with self._counted(Signal.TRACES, taken[0].spans):
                await self._export(Signal.TRACES, taken[0].request, taken[0].spans)
        return True

    async def _measure(self) -> None:
        collect = self.collect
        if collect is None:
            return

        def measured() -> tuple[bytes, int]:
            times = OwnTimes(self._started_ns, self._clock.now_us() * 1_000)
            return metrics_request(collect(), times, self._resource, frazil.__version__)

        request, points = await asyncio.to_thread(measured)
        if points:
            with self._counted(Signal.METRICS, points):
                await self._export(Signal.METRICS, request, points)

    @contextlib.contextmanager
    def _counted(self, signal: Signal, items: int) -> Iterator[None]:
        """Count items that were taken, as stored or as dropped."""
        try:
            yield
        except FrazilError as error:
            self.counts.dropped(signal, error.code, items)
        except TimeoutError:
            self.counts.dropped(signal, "timeout", items)
        except asyncio.CancelledError:
            self.counts.dropped(signal, STOPPED, items)
            raise
        else:
            self.counts.stored(signal, items)

    async def _export(self, signal: Signal, request: bytes, items: int) -> None:
        assert self._node is not None
        async with asyncio.timeout(EXPORT_SECONDS_MAX):
            try:
                await self._node.telemetry(LOCAL).export(LOCAL, self._place, signal, request, items)
            except TenantNotFound:  # it was deleted
                await self._prepare()
                await self._node.telemetry(LOCAL).export(LOCAL, self._place, signal, request, items)

    async def _prepare(self) -> None:
        """Create the tenant and its dataset: nobody else may."""
        assert self._node is not None
        parts, settings = self._node.tenant_parts, self._node.settings.telemetry
        assert parts is not None
        try:
            await asyncio.to_thread(parts.directory.add_dataset, *self._place, settings.limits, self._clock.now_us())
        except FrazilError as error:
            _log.warning("the tenant %s cannot be created: %s", TENANT, error)


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event for a limited time; whether it is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
