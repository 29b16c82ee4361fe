"""An export request whose sender traces it is part of the sender's trace, through either door; Frazil's own are not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from opentelemetry import trace
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import frazil
from frazil.core.settings import make_settings
from frazil.telemetry.decode import decode
from frazil.telemetry.signals import Signal
from parts.otlp import Receiver, attributes, receiving
from parts.otlp_doors import OtlpDoors, Reply, otlp_doors
from parts.telemetry import records, span, spans
from parts.telemetry import trace as trace_id

pytestmark = pytest.mark.timeout(120)

TOPICS = {signal: f"/default.default/{signal.value}" for signal in Signal}
NOT_SAMPLED = f"00-{trace_id(9)}-{span(9)}-00"


def request(number: int) -> bytes:
    return spans("shop", {"trace": trace_id(number), "id": span(number)})


def named(found: list[Span], name: str, topic: str) -> list[Span]:
    return [
        one
        for one in found
        if one.name.partition(" ")[0] == name
        and attributes(one).get("frazil.topic", attributes(one).get("messaging.destination.name")) == topic
    ]


async def sent(doors: OtlpDoors) -> list[trace.SpanContext]:
    """Send a request over each door within a span of its own, as instrumented exporters do, and two that nobody
    traces."""
    tracer, callers = TracerProvider().get_tracer("a program"), []
    for door in ("grpc", "http"):
        with tracer.start_as_current_span(door) as caller:
            headers: dict[str, str] = {}
            TraceContextTextMapPropagator().inject(headers)
            callers.append(caller.get_span_context())
            if door == "grpc":
                assert await doors.call(request(0), headers=list(headers.items())) == Reply(grpc.StatusCode.OK)
            else:
                assert (await doors.post(request(1), **headers)).status_code == 200
    assert await doors.call(request(2)) == Reply(grpc.StatusCode.OK)
    assert (await doors.post(request(3), traceparent=NOT_SAMPLED)).status_code == 200
    return callers


def test_a_request_is_part_of_its_senders_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")  # ms from a span to its export
    topic = TOPICS[Signal.TRACES]

    async def work(receiver: Receiver) -> None:
        traces = {"endpoint": receiver.endpoint, "sample_ratio": 0}
        async with otlp_doors(tmp_path, others={"traces": traces}, items_max=5) as doors:
            callers = await sent(doors)
            too_many = spans("shop", *({"trace": trace_id(8), "id": span(n)} for n in range(9)))
            parent = f"00-{trace_id(7)}-{span(7)}-01"
            assert (await doors.post(too_many, traceparent=parent)).status_code == 413
            assert await doors.call(records("shop", {"body": "x"}), Signal.LOGS, [("traceparent", parent)]) == Reply(
                grpc.StatusCode.OK
            )
            is_there = lambda found: len(named(found, "commit", TOPICS[Signal.LOGS])) == 1  # noqa: E731
            found = await asyncio.to_thread(receiver.wait_for, is_there)
            both = [named(found, name, topic) for name in ("publish", "commit")]
            assert [[one.trace_id.hex() for one in each] for each in both] == [
                [f"{caller.trace_id:032x}" for caller in callers]
            ] * 2
            publishes, commits = both
            assert [one.parent_span_id.hex() for one in publishes] == [f"{caller.span_id:016x}" for caller in callers]
            assert [one.parent_span_id for one in commits] == [one.span_id for one in publishes]
            assert [attributes(one)["frazil.offset"] for one in publishes] == [0, 1]
            (logged,) = named(found, "publish", TOPICS[Signal.LOGS])
            assert (logged.trace_id.hex(), logged.parent_span_id.hex()) == (trace_id(7), span(7))

    with receiving() as receiver:
        asyncio.run(work(receiver))


def test_spans_of_requests_are_stored_in_frazils_own_tenant_and_not_traced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")

    async def work() -> list[trace.SpanContext]:
        own = {"enabled": True, "own": True, "otlp": {"grpc_port": 0, "http_port": 0}}
        async with otlp_doors(tmp_path, others={"traces": {"sample_ratio": 1}, "telemetry": own}) as doors:
            callers = await sent(doors)
            while len(own_spans(doors.stored(Signal.TRACES, "_frazil"))) < 6:  # noqa: ASYNC110 - a task appends them
                await asyncio.sleep(0.05)
            return callers

    callers = asyncio.run(work())
    with frazil.open(make_settings({"data": tmp_path})) as storage:  # spans that ended later are stored at the end
        batches = list(storage.topic("/_frazil.default/traces", create=False).read_batches())
        rows = own_spans([request for batch in batches for request in batch.column("request").to_pylist()])
    publish = f"publish {TOPICS[Signal.TRACES]}"
    assert {row["span_name"] for row in rows} == {publish, "commit"}
    parents = [row["parent_span_id"] for row in rows if row["span_name"] == publish]
    assert sorted(parents) == sorted(["", *(f"{caller.span_id:016x}" for caller in callers)])


def own_spans(requests: list[bytes]) -> list[dict[str, Any]]:
    times = pa.array([0] * len(requests), pa.timestamp("us", "UTC"))
    offsets = pa.array(range(len(requests)), pa.int64())
    return list(decode(Signal.TRACES, pa.array(requests, pa.binary()), offsets, times).rows["traces"].to_pylist())
