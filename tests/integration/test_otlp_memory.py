"""Requests that would fill the memory: a real server refuses them within little, and answers others meanwhile."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path

import grpc
import grpc.aio
import httpx
import psutil
import pyarrow as pa
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from frazil.core.settings import MIB
from frazil.telemetry.protobuf_bytes import BYTES, sized, tag
from frazil.telemetry.requests import SERVICES
from frazil.telemetry.signals import Signal
from parts.otlp_doors import PROTOBUF
from parts.otlp_server import TelemetryServer, serving
from parts.telemetry import span, spans, trace

GROWTH_BYTES_MAX = 400 * MIB
"""Of requests that would take gigabytes. Those that are decompressed or parsed at once are few."""
ROUNDS = 3
GOOD = spans("shop", {"trace": trace(1), "id": span(1)})


def _spans_without_content(size: int) -> bytes:
    body = (tag(2, BYTES) + b"\0") * (size // 2)
    for number in (2, 1):
        body = tag(number, BYTES) + sized(body)
    return body


def _bad() -> list[tuple[bytes, dict[str, str]]]:
    zeros, empty = bytes(100 * MIB), _spans_without_content(15 * MIB)
    attributes = tag(2, BYTES) + sized((tag(9, BYTES) + b"\0") * (7 * MIB))
    for number in (2, 1):
        attributes = tag(number, BYTES) + sized(attributes)
    objects = json.dumps({"resourceSpans": [{}]}).replace("{}", "{}," * (5 * MIB) + "{}").encode()
    in_gzip, in_zstd = {"content-encoding": "gzip"}, {"content-encoding": "zstd"}
    return [
        (gzip.compress(zeros), in_gzip),
        (pa.Codec("zstd").compress(zeros, asbytes=True), in_zstd),
        (gzip.compress(empty), in_gzip),
        (gzip.compress(attributes), in_gzip),
        (gzip.compress(objects), {**in_gzip, "content-type": "application/json"}),
    ]


async def abuse(server: TelemetryServer, ended: asyncio.Event) -> set[int]:
    async with httpx.AsyncClient(base_url=server.otlp, timeout=100) as client:
        sent = [
            client.post("/v1/traces", content=body, headers=PROTOBUF | headers)
            for _ in range(ROUNDS)
            for body, headers in _bad()
        ]
        answers = await asyncio.gather(*sent)
        found = {answer.status_code for answer in answers}
        for answer in answers:
            if answer.status_code == 200:  # its one span, which is too large, is left out
                assert ExportTraceServiceResponse.FromString(answer.content).partial_success.rejected_spans == 1
    async with grpc.aio.insecure_channel(server.grpc.removeprefix("http://")) as channel:
        method = channel.unary_unary(f"/{SERVICES[Signal.TRACES]}/Export")
        calls = [method(bytes(100 * MIB), compression=grpc.Compression.Gzip, timeout=100) for _ in range(ROUNDS)]
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert {end.code() for end in ends} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    ended.set()
    return found


async def others(server: TelemetryServer, ended: asyncio.Event) -> int:
    count = 0
    async with httpx.AsyncClient(base_url=server.otlp, timeout=100) as client:
        while not ended.is_set():
            assert (await client.post("/v1/traces", content=GOOD, headers=PROTOBUF)).status_code == 200
            count += 1
    return count


@pytest.mark.timeout(240)
def test_bombs_are_refused_within_little_memory_and_others_are_answered(tmp_path: Path) -> None:
    async def work(server: TelemetryServer) -> tuple[set[int], int]:
        ended = asyncio.Event()
        return await asyncio.gather(abuse(server, ended), others(server, ended))

    with serving(tmp_path) as server:
        assert server.process is not None
        process = psutil.Process(server.process.pid)
        before = process.memory_info().rss
        statuses, answered = asyncio.run(work(server))
        assert statuses <= {200, 400, 413, 503}
        assert answered > 3
        high = Path(f"/proc/{process.pid}/status").read_text().partition("VmHWM:")[2].split()[0]
        assert int(high) * 1024 - before < GROWTH_BYTES_MAX
        assert len(server.requests(Signal.TRACES).bytes) == answered
