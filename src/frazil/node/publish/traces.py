"""The path of a message as an OpenTelemetry trace: publish → commit → move → visible.

A batch of a Flight client has the same spans, one set for each traced caller, or one for all of it.

This process emits all spans. It knows when a message was published and when its commit began; the mover reports, with
every commit of a table, which offsets it moved and when. So spans are linked by log and offset, and neither the stored
message nor the mover knows about traces.

Imported only if `traces.endpoint` or `telemetry.own` is set. Messages that wait for the mover are limited: for the
oldest the remaining spans are dropped.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import random
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from frazil.broker.topics.topic import BrokerTopic, OutgoingMessage
from frazil.core.clock import Clock
from frazil.core.errors import FrazilError
from frazil.core.names import TopicName
from frazil.core.put_notes import TRACES_MAX, FewRow
from frazil.core.settings import Settings
from frazil.core.settings.traces import TracesSettings
from frazil.log.topic_log import TopicLog
from frazil.node.request_ids import PARENT, current
from frazil.node.telemetry.scopes import is_own, tenant_of_namespace
from frazil.node.topics.freshness import append_time_us
from frazil.telemetry.own.spans import HandOver, Sink

WAITING_MAX = 10_000
EXPORT_SECONDS_MAX = 5

_log = logging.getLogger("frazil.serve")

Rows: TypeAlias = "pa.RecordBatch | list[FewRow]"


@dataclass(frozen=True, slots=True)
class _Published:
    log: TopicLog
    offset: int
    context: Context
    done_us: int


class Traces:
    """Emits spans. `publish` is called on the broker's loop, `reported` from any thread; a thread does the rest."""

    def __init__(self, settings: Settings, clock: Clock, sink: Sink | None = None) -> None:
        """`sink` gets the spans too, as export requests."""
        self._settings = settings
        self._clock = clock
        self._provider = TracerProvider(resource=Resource.create({"service.name": "frazil"}))
        if settings.traces.endpoint is not None:
            self._provider.add_span_processor(BatchSpanProcessor(_exporter(settings.traces, settings.traces.endpoint)))
        if sink is not None:
            self._provider.add_span_processor(BatchSpanProcessor(HandOver(sink)))
        self._tracer = self._provider.get_tracer("frazil")
        self._propagator = TraceContextTextMapPropagator()
        self._ratio = settings.traces.sample_ratio
        self._events: queue.Queue[_Published | Mapping[str, Any] | None] = queue.Queue(WAITING_MAX)
        self._waiting: deque[_Published] = deque(maxlen=WAITING_MAX)
        self._thread = threading.Thread(target=self._work, name="frazil-traces", daemon=True)
        self._thread.start()

    async def publish(self, topic: BrokerTopic, message: OutgoingMessage) -> int:
        """Publish through the topic; a message whose caller traces it is traced, and a sample of the others."""
        parent = self._parent(message)
        if not self._is_sampled(parent) or _is_own(topic.name):
            return await topic.publish(message)
        span = self._publishing(topic.label, parent, self._clock.now_us())
        try:
            offset = await topic.publish(message)
        except BaseException as error:
            self._failed(span, error)
            raise
        self._published(topic.feed.topic.log if topic.feed is not None else None, offset, span)
        return offset

    def now_us(self) -> int:
        return self._clock.now_us()

    def published_batch(
        self, log: TopicLog, rows: Rows, first_offset: int, began_us: int, given: Sequence[tuple[int, str]]
    ) -> None:
        """Record rows that are durable now. `given` are spans of callers, by the first row of each."""
        if _is_own(log.name):
            return
        count = len(rows)
        for row, parent in self._parents([one for one in given if one[0] < count], rows):
            span = self._publishing(str(log.name), parent, began_us)
            span.set_attribute("messaging.batch.message_count", count)
            self._published(log, first_offset + row, span)

    def refused_batch(self, log: TopicLog, error: FrazilError, began_us: int, given: Sequence[tuple[int, str]]) -> None:
        """The rows themselves are not examined: they may be the problem."""
        if _is_own(log.name):
            return
        for _, parent in self._parents(given, None):
            self._failed(self._publishing(str(log.name), parent, began_us), error)

    def reported(self, status: Mapping[str, Any]) -> None:
        """Process the mover's report: the end of each table, and its last move."""
        self._put(status)

    def flush(self) -> None:
        """Hand on the spans that have ended. Blocks."""
        self._provider.force_flush(EXPORT_SECONDS_MAX * 1_000)

    def close(self) -> None:
        """Send the known spans, unless the receiver takes too long."""
        self._events.put(None)
        self._thread.join()
        self._provider.shutdown()

    def _parents(self, given: Sequence[tuple[int, str]], rows: Rows | None) -> list[tuple[int, Context | None]]:
        """Return what is traced of a batch, by row; the whole batch, if no row has its own trace."""
        by_row = dict(_in_attributes(rows) if rows is not None else ()) | dict(given)
        found = ((row, self._context(text)) for row, text in sorted(by_row.items())[:TRACES_MAX])
        traced: list[tuple[int, Context | None]] = [one for one in found if one[1] is not None]
        return [(row, context) for row, context in traced or [(0, None)] if self._is_sampled(context)]

    def _parent(self, message: OutgoingMessage) -> Context | None:
        request = current()
        text = request.trace_parent if request is not None else None
        return self._context(text or message.attributes.get(PARENT))

    def _context(self, text: str | None) -> Context | None:
        if text is None:
            return None
        context = self._propagator.extract({PARENT: text})
        return context if trace.get_current_span(context).get_span_context().is_valid else None

    def _is_sampled(self, parent: Context | None) -> bool:
        if parent is None:
            return random.random() < self._ratio  # noqa: S311 - no secret
        return trace.get_current_span(parent).get_span_context().trace_flags.sampled

    def _publishing(self, topic: str, parent: Context | None, began_us: int) -> Span:
        attributes = {"messaging.system": "frazil", "messaging.destination.name": topic}
        return self._tracer.start_span(
            f"publish {topic}", parent, SpanKind.SERVER, attributes, start_time=began_us * 1_000
        )

    def _failed(self, span: Span, error: BaseException) -> None:
        span.set_status(StatusCode.ERROR, error.message if isinstance(error, FrazilError) else type(error).__name__)
        span.end(self._clock.now_us() * 1_000)

    def _published(self, log: TopicLog | None, offset: int, span: Span) -> None:
        done_us = self._clock.now_us()
        span.set_attribute("frazil.offset", offset)
        span.end(done_us * 1_000)
        if log is not None:
            self._put(_Published(log, offset, trace.set_span_in_context(span), done_us))

    def _put(self, event: _Published | Mapping[str, Any]) -> None:
        with contextlib.suppress(queue.Full):  # the thread hangs on a disk: spans are dispensable
            self._events.put_nowait(event)

    # --- in the thread

    def _work(self) -> None:
        while (event := self._events.get()) is not None:
            if isinstance(event, _Published):
                self._committed(event)
            else:
                self._moved(event.get("topics", {}))

    def _committed(self, one: _Published) -> None:
        """From when its group was taken, which is its append time, to the acknowledgement."""
        try:
            began_us = append_time_us(one.log, one.offset)
        except (FrazilError, OSError) as error:
            _log.debug("offset %d of %s is not traced further: %s", one.offset, one.log.name, error)
            return
        self._span("commit", one, min(began_us, one.done_us), one.done_us)
        if self._settings.of_topic(one.log.name).enabled:
            self._waiting.append(one)

    def _moved(self, topics: Mapping[str, Any]) -> None:
        by_log = {report["log_id"]: report for report in topics.values()}
        kept = []
        for one in self._waiting:
            report = by_log.get(one.log.log_id)
            if report is None or one.offset >= report["table_end"]:
                kept.append(one)
            else:
                self._visible(one, report["moved"])
        self._waiting = deque(kept, WAITING_MAX)

    def _visible(self, one: _Published, move: Mapping[str, Any] | None) -> None:
        if move is None or not move["start"] <= one.offset < move["end"]:  # by a move that was not reported
            now_us = self._clock.now_us()
            self._span("visible", one, now_us, now_us)
            return
        moved = {"frazil.move.start": move["start"], "frazil.move.end": move["end"]}
        self._span("move", one, move["started_us"], move["written_us"], moved)
        snapshot = {"frazil.snapshot_id": str(move["snapshot_id"])}
        self._span("visible", one, move["written_us"], move["committed_us"], snapshot)

    def _span(
        self, name: str, one: _Published, start_us: int, end_us: int, more: Mapping[str, Any] | None = None
    ) -> None:
        attributes: dict[str, Any] = {"frazil.topic": str(one.log.name), "frazil.log_id": one.log.log_id}
        attributes |= {"frazil.offset": one.offset, **(more or {})}
        span = self._tracer.start_span(name, one.context, attributes=attributes, start_time=start_us * 1_000)
        span.end(end_us * 1_000)


def _exporter(traces: TracesSettings, endpoint: str) -> OTLPSpanExporter:
    return OTLPSpanExporter(
        endpoint=endpoint,
        insecure=endpoint.startswith("http://"),
        headers=tuple((name, value.get_secret_value()) for name, value in traces.headers.items()),
        timeout=EXPORT_SECONDS_MAX,
    )


def _is_own(topic: TopicName) -> bool:
    """Whether a topic is of this process itself: its appends are not traced, or each would lead to another."""
    tenant = tenant_of_namespace(topic.namespace)
    return tenant is not None and is_own(tenant)


def _in_attributes(batch: Rows) -> Iterator[tuple[int, str]]:
    """Find the first messages of a batch with a trace in their attributes; for many rows, columns are searched."""
    if isinstance(batch, list):
        yield from ((at, row.attributes[PARENT]) for at, row in enumerate(batch) if PARENT in (row.attributes or ()))
        return
    at = batch.schema.get_field_index("_attributes")
    if at < 0:
        return
    column = batch.column(at)
    keys = column.keys
    if pc.index(keys, PARENT).as_py() < 0:
        return
    found = pc.indices_nonzero(pc.equal(keys, PARENT))[:TRACES_MAX]
    rows = np.searchsorted(column.offsets.to_numpy(), found.to_numpy(), side="right") - 1
    yield from zip(rows.tolist(), pc.take(column.items, found).to_pylist(), strict=True)


@contextlib.contextmanager
def traces_open(settings: Settings, clock: Clock) -> Iterator[Traces]:
    traces = Traces(settings, clock)
    try:
        yield traces
    finally:
        traces.close()
