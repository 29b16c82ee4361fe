"""Senders of telemetry that go on while a server is killed: they remember which requests were acknowledged.

Each row has a key of its own, so that a reader of the tables can tell which request it belongs to, and how often.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import grpc
import httpx
import pyarrow as pa
import pyarrow.flight
import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider

from frazil.telemetry.requests import REQUESTS, SERVICES
from frazil.telemetry.signals import Signal
from parts.otlp_requests import now_ns
from parts.processes import pause
from parts.tenants import FlightTenant, batch

PLACES = (("acme", "default"), ("acme", "shop"), ("globex", "default"))
KINDS = (("gauge",), ("sum", "gauge"), ("histogram", "summary"), ("exponential_histogram", "sum"), ("summary",))
READINGS = "readings"
KEYS = {"traces": "span_name", "logs": "body", READINGS: "reading"}
"""The column with the key of a row; in tables of metrics, it is the name of the metric."""
PAUSE_SECONDS, ATTEMPTS_MAX, SECONDS_MAX = 0.1, 4, 20
_QUICK = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200)]
_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)

Rows = Mapping[str, tuple[str, ...]]
"""The keys of a request's rows, by table."""


class Where(NamedTuple):
    """The doors of a server, at addresses that stay."""

    grpc: str
    http: str
    flight: str


class Answers(NamedTuple):
    """How the attempts to send one request ended. Those of an unknown outcome are stored or not."""

    acknowledged: int
    unknown: int = 0


ACKNOWLEDGED, UNKNOWN = Answers(1), Answers(0, 1)


@dataclass(slots=True)
class Sent:
    namespace: str
    rows: Rows
    acknowledged: int = 0
    unknown: int = 0


class Door(Protocol):
    """Sends what it has made; any error but that of a server which is away ends its sender."""

    def make(self, key: str, number: int) -> tuple[Any, Rows]: ...

    def send(self, made: Any) -> Answers: ...

    def close(self) -> None: ...


def made(signal: Signal, key: str, number: int) -> tuple[bytes, Rows]:
    """A request of one to three rows of a signal, or of points of one or two kinds."""
    message, at_ns = REQUESTS[signal](), now_ns()
    keys = tuple(f"{key}.{index}" for index in range(1 + number % 3))
    if signal is Signal.TRACES:
        scope = message.resource_spans.add().scope_spans.add()
        for one in keys:
            scope.spans.add(name=one, start_time_unix_nano=at_ns, end_time_unix_nano=at_ns + 1)
        return message.SerializeToString(), {"traces": keys}
    if signal is Signal.LOGS:
        scope = message.resource_logs.add().scope_logs.add()
        for one in keys:
            scope.log_records.add(time_unix_nano=at_ns).body.string_value = one
        return message.SerializeToString(), {"logs": keys}
    scope, kinds = message.resource_metrics.add().scope_metrics.add(), KINDS[number % len(KINDS)]
    for kind in kinds:
        getattr(scope.metrics.add(name=f"{key}.{kind}"), kind).data_points.add(time_unix_nano=at_ns)
    rows = {f"metrics_{kind}": (f"{key}.{kind}",) for kind in kinds}
    return message.SerializeToString(), rows | {"metrics": tuple(f"{key}.{kind}" for kind in kinds)}


class GrpcDoor:
    def __init__(self, where: Where, place: tuple[str, str], signal: Signal) -> None:
        self._signal, self._headers = signal, tuple(_headers(place).items())
        self._channel: Any = grpc.insecure_channel(where.grpc, _QUICK)
        self._export = self._channel.unary_unary(f"/{SERVICES[signal]}/Export")

    def make(self, key: str, number: int) -> tuple[Any, Rows]:
        return made(self._signal, key, number)

    def send(self, request: bytes) -> Answers:
        try:
            self._export(request, metadata=self._headers, timeout=SECONDS_MAX)
        except grpc.RpcError as error:
            if error.code() not in _AWAY:
                raise
            return UNKNOWN
        return ACKNOWLEDGED

    def close(self) -> None:
        self._channel.close()


class HttpDoor:
    def __init__(self, where: Where, place: tuple[str, str], signal: Signal) -> None:
        self._signal = signal
        headers = {"content-type": "application/x-protobuf", **_headers(place)}
        self._client = httpx.Client(base_url=where.http, headers=headers, timeout=SECONDS_MAX)

    def make(self, key: str, number: int) -> tuple[Any, Rows]:
        return made(self._signal, key, number)

    def send(self, request: bytes) -> Answers:
        try:
            answer = self._client.post(f"/v1/{self._signal.value}", content=request)
        except httpx.TransportError:
            return UNKNOWN
        assert answer.status_code in (200, 503), answer.text
        return ACKNOWLEDGED if answer.is_success else UNKNOWN

    def close(self) -> None:
        self._client.close()


class _CountingSession(requests.Session):
    """Counts the attempts of an exporter, which repeats requests by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.acknowledged = self.unknown = 0

    def send(self, request: Any, **options: Any) -> Any:
        self.unknown += 1
        answer = super().send(request, **options)
        assert answer.status_code in (200, 503), answer.text
        if answer.ok:
            self.acknowledged, self.unknown = self.acknowledged + 1, self.unknown - 1
        return answer

    def answers(self) -> Answers:
        found = Answers(self.acknowledged, self.unknown)
        self.acknowledged = self.unknown = 0
        return found


class StockExporter:
    """OpenTelemetry's own exporter of spans, over HTTP."""

    def __init__(self, where: Where, place: tuple[str, str]) -> None:
        self._session = _CountingSession()
        self._exporter = OTLPSpanExporter(f"{where.http}/v1/traces", headers=_headers(place), session=self._session)
        self._tracer = TracerProvider(shutdown_on_exit=False).get_tracer("load")

    def make(self, key: str, number: int) -> tuple[Any, Rows]:
        keys = tuple(f"{key}.{index}" for index in range(1 + number % 3))
        spans = [self._tracer.start_span(one) for one in keys]
        for span in spans:
            span.end()
        return spans, {"traces": keys}

    def send(self, spans: Sequence[Any]) -> Answers:
        self._exporter.export(spans)
        return self._session.answers()

    def close(self) -> None:
        self._exporter.shutdown()
        self._session.close()


class FlightTable:
    """A table that a tenant fills itself."""

    def __init__(self, where: Where, place: tuple[str, str]) -> None:
        tenant, self._dataset = place
        self._client = FlightTenant(where.flight, tenant=tenant)

    def make(self, key: str, number: int) -> tuple[Any, Rows]:
        keys = tuple(f"{key}.{index}" for index in range(1 + number % 3))
        return batch(reading=list(keys)), {READINGS: keys}

    def send(self, rows: pa.RecordBatch) -> Answers:
        try:
            (answer,) = self._client.put((self._dataset, READINGS), rows)
        except (pa.flight.FlightUnavailableError, pa.flight.FlightTimedOutError):
            return UNKNOWN
        assert answer["rows"] == len(rows)
        return ACKNOWLEDGED

    def close(self) -> None:
        self._client.__exit__()


class Sender(threading.Thread):
    """Sends without end. What has an unknown outcome is sent again, or given up, by chance."""

    def __init__(self, name: str, place: tuple[str, str], door: Door, seed: int, pause_s: float) -> None:
        super().__init__(name=name, daemon=True)
        self._pause_s = pause_s
        self._namespace, self._door = ".".join(place), door
        self._rng = random.Random(seed)
        self._stop_asked = threading.Event()
        self.sent: list[Sent] = []
        self.acknowledged = 0
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stop_asked.wait(self._pause_s):
                self._send_one()
        except BaseException as error:  # noqa: BLE001 - the test asks for it
            self.failed = error
        finally:
            self._door.close()

    def _send_one(self) -> None:
        number = len(self.sent)
        request, rows = self._door.make(f"{self.name}.{number}", number)
        sent = Sent(self._namespace, rows)
        self.sent.append(sent)
        for _ in range(self._rng.choice((1, ATTEMPTS_MAX))):
            answers = self._door.send(request)
            sent.acknowledged += answers.acknowledged
            sent.unknown += answers.unknown
            if sent.acknowledged:
                self.acknowledged += 1
                return
            self._stop_asked.wait(PAUSE_SECONDS)

    def ask_to_stop(self) -> None:
        self._stop_asked.set()


class Load:
    """All signals through both doors, into several datasets of two tenants; a stock exporter, and a table of Flight."""

    def __init__(
        self,
        where: Where,
        seed: int,
        places: Sequence[tuple[str, str]] = PLACES,
        pause_s: float = PAUSE_SECONDS,
    ) -> None:
        doors: list[tuple[str, tuple[str, str], Door]] = []
        for place in places:
            for signal in Signal:
                doors.append((f"grpc-{signal.value}", place, GrpcDoor(where, place, signal)))
                doors.append((f"http-{signal.value}", place, HttpDoor(where, place, signal)))
        if len(places) > 1:  # after a failure it waits for up to 8 seconds
            doors.append(("stock", places[0], StockExporter(where, places[0])))
        doors.append(("flight", places[-1], FlightTable(where, places[-1])))
        self._senders = [
            Sender(f"{name}-{'.'.join(place)}", place, door, seed + at, pause_s)
            for at, (name, place, door) in enumerate(doors)
        ]

    def __enter__(self) -> Self:
        for sender in self._senders:
            sender.start()
        return self

    def __exit__(self, *_: object) -> None:
        for sender in self._senders:
            sender.ask_to_stop()
        for sender in self._senders:
            sender.join(4 * SECONDS_MAX)

    @property
    def acknowledged(self) -> int:
        """How many requests; every sender must be at work."""
        self.check()
        return sum(sender.acknowledged for sender in self._senders)

    def check(self) -> None:
        failed = {sender.name: sender.failed for sender in self._senders if sender.failed is not None}
        assert not failed, failed

    def everybody_goes_on(self) -> None:
        """Wait until each sender has had an answer from now on."""
        before = [sender.acknowledged for sender in self._senders]
        for _ in range(int(60 / PAUSE_SECONDS)):
            self.check()
            if all(sender.acknowledged > count for sender, count in zip(self._senders, before, strict=True)):
                return
            pause(PAUSE_SECONDS)
        at_rest = [
            sender.name for sender, count in zip(self._senders, before, strict=True) if sender.acknowledged == count
        ]
        raise AssertionError(f"no request was acknowledged in a minute: {at_rest}")

    def stop(self) -> list[Sent]:
        self.__exit__()
        assert not any(sender.is_alive() for sender in self._senders)
        self.check()
        return [sent for sender in self._senders for sent in sender.sent]


def assert_exactly_once(sent: Sequence[Sent], found: Mapping[tuple[str, str], Counter[str]]) -> None:
    """`found` has how often each key is there, by namespace and table."""
    left = {table: Counter(keys) for table, keys in found.items()}
    for one in sent:
        places = [((one.namespace, table), key) for table, keys in one.rows.items() for key in keys]
        counts = {left.get(table, Counter[str]()).pop(key, 0) for table, key in places}
        assert len(counts) == 1, f"{one}: only a part of the request is there, or a part twice: {counts}"
        (count,) = counts
        assert count >= one.acknowledged, f"{one}: it was acknowledged, and is lost"
        assert count <= one.acknowledged + one.unknown, f"{one}: it is there {count} times"
    others = {table: keys for table, keys in left.items() if keys}
    assert not others, f"nobody has sent these: {others}"


def _headers(place: tuple[str, str]) -> dict[str, str]:
    return {"x-frazil-tenant": place[0], "x-frazil-dataset": place[1]}
