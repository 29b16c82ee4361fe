"""Spans of this process as export requests: an exporter of the SDK that hands them on within the process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

Sink = Callable[[bytes, int], None]
"""Takes a request and the number of its spans. It never waits."""


class HandOver(SpanExporter):
    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._sink(bytes(encode_spans(spans).SerializeToString()), len(spans))
        return SpanExportResult.SUCCESS
