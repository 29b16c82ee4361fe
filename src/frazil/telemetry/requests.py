"""Export requests as doors receive them: whether they are valid Protobuf, and how many items they have.

A request is parsed by `protobuf`, and its bytes are kept as they came. Parsed, it takes up to 90 times the memory, and
microseconds for each KiB, in which nothing else of the process runs. So a larger one is cut into pieces first, at the
borders of its resources, scopes and items, and each piece is parsed alone, framed as a request of its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from frazil.core.errors import RequestTooLarge
from frazil.telemetry.protobuf_bytes import BYTES, Field, fields_of, invalid_request, sized, tag, varint
from frazil.telemetry.signals import Signal

REQUESTS: Mapping[Signal, Any] = {
    Signal.TRACES: ExportTraceServiceRequest,
    Signal.LOGS: ExportLogsServiceRequest,
    Signal.METRICS: ExportMetricsServiceRequest,
}


def _file(request: Any) -> Any:
    return request.DESCRIPTOR.file


SERVICES: Mapping[Signal, str] = {
    signal: next(iter(_file(request).services_by_name.values())).full_name for signal, request in REQUESTS.items()
}
"""The gRPC services that take them."""
FILES = tuple(_file(request) for request in REQUESTS.values())
"""The descriptors of the services."""
PROFILES_SERVICE = "opentelemetry.proto.collector.profiles.v1development.ProfilesService"

WHOLE_BYTES_MAX = 256 * 1024
"""A request up to this size is parsed at once; of a larger one, pieces of this size."""
_CONTAINERS = (1, 2)
"""Numbers of the field `resource_spans` of a request, and of `scope_spans` of it; likewise of other signals."""
_ITEM = 2
"""The number of the items in a scope."""
_METRIC_DATA, _POINT = frozenset({5, 7, 9, 10, 11}), 1
"""Numbers of the kinds of data in a metric, and of the points in each of them."""
ITEM_SETTING = "telemetry.otlp.item_bytes_max"


class ItemLimits(NamedTuple):
    items_max: int
    item_bytes_max: int


class RequestCheck:
    """Parses a request piece by piece, and leaves out items that are too large: the others are as good without them."""

    def __init__(self, signal: Signal, request: bytes, limits: ItemLimits) -> None:
        self._signal = signal
        self._request = request
        self._limits = limits
        self._walk = _PieceWalk(signal, request, limits)

    def pieces(self) -> Iterator[int]:
        """Yield the number of spans, log records or points of each piece; raises `InvalidInput` and
        `RequestTooLarge`."""
        is_small = len(self._request) <= min(WHOLE_BYTES_MAX, self._limits.item_bytes_max)
        items = 0
        for piece in (self._request,) if is_small else self._walk.message(0, 0, len(self._request)):
            found = _counted(self._signal, piece)
            items += found
            if items > self._limits.items_max:
                raise _too_many(self._limits)
            yield found

    @property
    def rejected(self) -> int:
        """Return how many spans, log records or points were left out, once all pieces were counted. A metric that is
        left out may have had none."""
        return self._walk.rejected

    @property
    def is_cut(self) -> bool:
        """Whether items were left out."""
        return bool(self._walk.left_out)

    @property
    def kept_bytes_max(self) -> int:
        """Return how many bytes the request has without them, or a few more."""
        return len(self._request) - self._walk.left_out_bytes

    def kept(self) -> bytes:
        """Return the request without them. Takes as long as the walk through its pieces."""
        if not self.is_cut:
            return self._request
        return b"".join(_without(memoryview(self._request), self._walk.left_out, 0, len(self._request)).parts)


def count_items(signal: Signal, request: bytes, limits: ItemLimits) -> int:
    """Return the number of spans, log records or points that are not too large; raises as `RequestCheck` does."""
    return sum(RequestCheck(signal, request, limits).pieces())


def _counted(signal: Signal, piece: bytes) -> int:
    try:
        return _COUNTS[signal](REQUESTS[signal].FromString(piece))
    except DecodeError as error:
        raise invalid_request(str(error)) from None


def _spans(request: Any) -> int:
    return sum(len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans)


def _records(request: Any) -> int:
    return sum(len(scope.log_records) for resource in request.resource_logs for scope in resource.scope_logs)


def _points(request: Any) -> int:
    found = 0
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                kind = metric.WhichOneof("data")
                if kind is not None:
                    found += len(getattr(metric, kind).data_points)
    return found


_COUNTS: Mapping[Signal, Callable[[Any], int]] = {
    Signal.TRACES: _spans,
    Signal.LOGS: _records,
    Signal.METRICS: _points,
}


# --- pieces


class _PieceWalk:
    """Cuts a large request into requests that have its fields, each once and in their order."""

    def __init__(self, signal: Signal, request: bytes, limits: ItemLimits) -> None:
        self._signal = signal
        self._request = request
        self._limits = limits
        self._fields = 0
        self.left_out: list[int] = []
        """Where items begin that are too large."""
        self.left_out_bytes = 0
        self.rejected = 0

    def message(self, level: int, start: int, end: int) -> Iterator[bytes]:
        """Yield the pieces of a message: the request at level 0, a resource at 1, a scope at 2."""
        done = start
        for field in fields_of(self._request, start, end):
            self._count()
            if level < len(_CONTAINERS) and (field.number, field.wire_type) == (_CONTAINERS[level], BYTES):
                if field.start > done:
                    yield self._framed(level, done, field.start)
                yield from self.message(level + 1, field.value, field.end)
                done = field.end
                continue
            if field.end - field.start > self._limits.item_bytes_max:
                if level < len(_CONTAINERS) or (field.number, field.wire_type) != (_ITEM, BYTES):
                    what = "a resource or another field of the request has"  # of many items
                    raise RequestTooLarge(what, "bytes", ITEM_SETTING, self._limits.item_bytes_max)
                if field.start > done:
                    yield self._framed(level, done, field.start)
                done = field.end
                self.left_out.append(field.start)
                self.left_out_bytes += field.end - field.start
                self.rejected += self._points(field) if self._signal is Signal.METRICS else 1
                continue
            if field.end - done > WHOLE_BYTES_MAX and field.start > done:
                yield self._framed(level, done, field.start)
                done = field.start
        if end > done:
            yield self._framed(level, done, end)

    def _points(self, metric: Field) -> int:
        """Count the points of a metric without parsing it: of several kinds of data those of the last one."""
        points = kind = 0
        for data in fields_of(self._request, metric.value, metric.end):
            self._count()
            if data.number in _METRIC_DATA and data.wire_type == BYTES:
                points = points if data.number == kind else 0  # parts of one message are merged
                kind = data.number
                for field in fields_of(self._request, data.value, data.end):
                    self._count()
                    points += (field.number, field.wire_type) == (_POINT, BYTES)
        return points

    def _count(self) -> None:
        """Resources, scopes and fields count too: even an empty one takes time."""
        self._fields += 1
        if self._fields > 2 * self._limits.items_max:
            raise _too_many(self._limits)

    def _framed(self, level: int, start: int, end: int) -> bytes:
        framed = self._request[start:end]
        for number in reversed(_CONTAINERS[:level]):
            framed = bytes([number << 3 | BYTES]) + sized(framed)
        return framed


class _MessageParts(NamedTuple):
    """The bytes of a message, in parts that are not copied."""

    parts: list[bytes | memoryview]
    size: int


def _without(request: memoryview, left_out: Sequence[int], start: int, end: int) -> _MessageParts:
    """Return a message without the fields that begin at some places, which are in order."""
    parts: list[bytes | memoryview] = []
    done = start
    for field in fields_of(request, start, end):
        first, behind = bisect_left(left_out, field.start), bisect_left(left_out, field.end)
        if first == behind:
            continue
        parts.append(request[done : field.start])
        if left_out[first] != field.start:
            inner = _without(request, left_out, field.value, field.end)
            parts += (tag(field.number, BYTES) + varint(inner.size), *inner.parts)
        done = field.end
    parts.append(request[done:end])
    return _MessageParts(parts, sum(map(len, parts)))


def _too_many(limits: ItemLimits) -> RequestTooLarge:
    return RequestTooLarge("the request has", "items", "telemetry.otlp.items_max", limits.items_max)
