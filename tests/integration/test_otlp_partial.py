"""Items that are too large are left out of a request; the response says how many, through both doors."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToJson
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from frazil.core.principal import ANONYMOUS, Principal
from frazil.node.telemetry.places import TenantPlace
from frazil.telemetry.requests import REQUESTS, SERVICES, ItemLimits, count_items
from frazil.telemetry.responses import Rejected
from frazil.telemetry.signals import Signal
from parts.otlp_doors import OtlpDoors, otlp_doors
from parts.telemetry import metrics, records, span, spans, trace

pytestmark = pytest.mark.timeout(120)

FAT = "x" * 600_000
LIMIT = 500_000
RESPONSES = {
    Signal.TRACES: (ExportTraceServiceResponse, "rejected_spans"),
    Signal.LOGS: (ExportLogsServiceResponse, "rejected_log_records"),
    Signal.METRICS: (ExportMetricsServiceResponse, "rejected_data_points"),
}


def requests(signal: Signal, *fat: bool) -> bytes:
    """One request; of a fat metric each has two points."""
    if signal is Signal.TRACES:
        return spans("shop", *({"trace": trace(1), "id": span(n), "name": FAT * one} for n, one in enumerate(fat)))
    if signal is Signal.LOGS:
        return records("shop", *({"body": str(n) + FAT * one} for n, one in enumerate(fat)))
    request, scope = metrics("shop")
    for number, one in enumerate(fat):
        points = scope.metrics.add(name=f"load {number}", description=FAT * one).gauge.data_points
        for value in range(2):
            points.add(as_int=value)
    return bytes(request.SerializeToString())


def as_json(signal: Signal, *fat: bool) -> str:
    """Without ids, which OTLP writes in another form than Protobuf's own JSON."""
    request = REQUESTS[signal].FromString(requests(signal, *fat))
    for one in request.resource_spans[0].scope_spans[0].spans if signal is Signal.TRACES else ():
        one.ClearField("trace_id")
        one.ClearField("span_id")
    return str(MessageToJson(request))


async def called(doors: OtlpDoors, signal: Signal, body: bytes) -> Any:
    response = await doors.channel.unary_unary(f"/{SERVICES[signal]}/Export")(body)
    return RESPONSES[signal][0].FromString(response).partial_success


@pytest.mark.parametrize("signal", list(Signal))
def test_the_response_says_how_many_items_are_not_stored(tmp_path: Path, signal: Signal) -> None:
    response, field = RESPONSES[signal]
    each = 2 if signal is Signal.METRICS else 1
    both = requests(signal, False, True, False, True)

    async def work() -> None:
        async with otlp_doors(tmp_path, item_bytes_max=LIMIT) as doors:
            found = await called(doors, signal, both)
            assert getattr(found, field) == 2 * each
            assert f"telemetry.otlp.item_bytes_max = {LIMIT}" in found.error_message
            answer = await doors.post(both, signal)
            assert answer.status_code == 200
            assert response.FromString(answer.content).partial_success == found
            answer = await doors.post(as_json(signal, True, False), signal, content_type="application/json")
            (told,) = answer.json().values()
            assert (answer.status_code, told["errorMessage"]) == (200, found.error_message)
            assert told.keys() - {"errorMessage"} == {found.DESCRIPTOR.fields[0].json_name}
            assert await called(doors, signal, requests(signal, True)) == type(found)(
                **{field: each}, error_message=found.error_message
            )
            assert await called(doors, signal, requests(signal, False)) == type(found)()
            counted = [count_items(signal, one, ItemLimits(100, LIMIT)) for one in doors.stored(signal)]
            assert counted == [2 * each, 2 * each, each, each]
            assert FAT.encode() not in b"".join(doors.stored(signal))
            assert doors.counts.rejected == {signal: 6 * each}
            assert doors.counts.refused == {}

    asyncio.run(work())


def test_a_metric_without_points_is_left_out_with_a_warning(tmp_path: Path) -> None:
    """It is not parsed, so its bytes may be anything: they would make an error of the whole request."""
    request, scope = metrics("shop")
    scope.metrics.add(name="load").gauge.data_points.add(as_int=1)
    scope.metrics.add(name="fat", description=FAT)
    body = request.SerializeToString().replace(b"fat", b"\xff\xfe\xfd")

    async def work() -> None:
        async with otlp_doors(tmp_path, item_bytes_max=LIMIT) as doors:
            found = await called(doors, Signal.METRICS, body)
            assert found.rejected_data_points == 0
            assert "telemetry.otlp.item_bytes_max" in found.error_message
            (stored,) = doors.stored(Signal.METRICS)
            del scope.metrics[1]
            assert stored == request.SerializeToString()

    asyncio.run(work())


def test_a_request_of_which_a_part_is_left_out_is_held_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body, held = requests(Signal.LOGS, *[False] * 9, True), []

    async def work() -> None:
        async with otlp_doors(tmp_path, item_bytes_max=LIMIT) as doors:
            telemetry = doors.node.telemetry(ANONYMOUS)
            export = telemetry.export

            async def looked(who: Principal, place: TenantPlace, signal: Signal, request: bytes, count: int) -> int:
                held.append((doors.door.held_bytes, len(body) + len(request)))
                return await export(who, place, signal, request, count)

            monkeypatch.setattr(telemetry, "export", looked)
            await called(doors, Signal.LOGS, body)
            await doors.post(body, Signal.LOGS)
            assert doors.door.held_bytes == 0

    asyncio.run(work())
    assert len(held) == 2
    assert all(0 <= counted - real < 20 for counted, real in held), held


def test_json_that_is_larger_as_protobuf_is_limited_as_protobuf(tmp_path: Path) -> None:
    def of(points: int) -> str:
        point = {"explicitBounds": [1] * points, "bucketCounts": [0] * points}
        metric = {"name": "m", "histogram": {"dataPoints": [point]}}
        found = {"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}
        return json.dumps(found, separators=(",", ":"))

    limit = 100_000

    async def work() -> None:
        async with otlp_doors(tmp_path, request_bytes_max=limit, body_bytes_max=limit) as doors:
            assert len(of(10_000)) < limit
            for points, status in ((10_000, 413), (6_000, 200)):
                answer = await doors.post(of(points), Signal.METRICS, content_type="application/json")
                assert answer.status_code == status
            assert "as Protobuf" in (await doors.post(of(10_000), Signal.METRICS, content_type="application/json")).text
            assert len(doors.stored(Signal.METRICS)) == 1

    asyncio.run(work())


@pytest.mark.parametrize("door", ["grpc", "http"])
def test_a_stock_exporter_takes_it_for_success_and_does_not_send_again(tmp_path: Path, door: str) -> None:
    def export(doors: OtlpDoors) -> SpanExportResult:
        exporter: SpanExporter = (
            GrpcExporter(endpoint=f"http://{doors.grpc}") if door == "grpc" else HttpExporter(f"{doors.url}/v1/traces")
        )
        kept: list[Any] = []
        provider = TracerProvider()
        tracer = provider.get_tracer("a program")
        for name in ("small", FAT):
            with tracer.start_as_current_span(name) as one:
                kept.append(one)
        result = exporter.export(kept)
        exporter.shutdown()
        return result

    async def work() -> None:
        async with otlp_doors(tmp_path, item_bytes_max=LIMIT) as doors:
            assert await asyncio.to_thread(export, doors) is SpanExportResult.SUCCESS
            (request,) = [REQUESTS[Signal.TRACES].FromString(one) for one in doors.stored()]
            assert [one.name for one in request.resource_spans[0].scope_spans[0].spans] == ["small"]

    asyncio.run(work())


def test_what_the_owner_left_out_is_added() -> None:
    mine, its = Rejected(2, "mine"), Rejected(1, "its")
    assert Rejected.of_response(its.as_protobuf()) == its
    assert mine.and_also(its) == Rejected(3, "mine")
    assert Rejected().and_also(its) == its
    assert Rejected.of_response(b"") == Rejected()
