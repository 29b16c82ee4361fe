"""How fast requests of spans become rows: the decoder beside a loop over the objects of protobuf, in the same run.

Counts the processor time of this process, so a core that others use too does not matter much.
"""

from __future__ import annotations

import gc
import random
import time
from base64 import b64encode
from collections.abc import Callable

import pyarrow as pa
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from frazil.core.rows import TIME
from frazil.telemetry.decode import decode, decode_parts
from frazil.telemetry.schemas import tables_of
from frazil.telemetry.signals import Signal
from measure import Figure, in_turns, report

REQUESTS, SPANS, ROUNDS = 64, 512, 7
SPANS_WANTED = 300_000
START_NS = 1_700_000_000_000_000_000
RESOURCE = {
    "service.name": "checkout",
    "service.version": "1.2.3",
    "telemetry.sdk.language": "go",
    "deployment.environment": "production",
}
DOUBLES = ("span_attributes",)
"""Columns in which Python and Arrow may write the same number differently: `1e-05` and `1e-5`."""
KINDS = ("Unspecified", "Internal", "Server", "Client", "Producer", "Consumer")
STATUS_CODES = ("Unset", "Ok", "Error")
TYPES = {"int_value": "int", "bool_value": "bool", "double_value": "double", "bytes_value": "bytes"}


def request(seed: int, spans: int = SPANS) -> bytes:
    """A request of spans with 8 attributes each, some 285 bytes a span."""
    rng = random.Random(seed)
    made = ExportTraceServiceRequest()
    resource = made.resource_spans.add()
    for key, text in {**RESOURCE, "host.name": f"host-{seed}"}.items():
        resource.resource.attributes.add(key=key).value.string_value = text
    scope = resource.scope_spans.add()
    scope.scope.name, scope.scope.version = "io.opentelemetry.http", "1.0"
    for number in range(spans):
        start = START_NS + 1_000_003 * number
        span = scope.spans.add(
            trace_id=rng.randbytes(16),
            span_id=rng.randbytes(8),
            parent_span_id=rng.randbytes(8),
            name="GET /cart",
            kind=2,
            start_time_unix_nano=start,
            end_time_unix_nano=start + rng.randrange(10**9),
        )
        span.status.code = 1
        for key, value in {
            "http.request.method": {"string_value": "GET"},
            "url.path": {"string_value": "/cart/items"},
            "http.response.status_code": {"int_value": 200},
            "server.port": {"int_value": 8080},
            "user.premium": {"bool_value": True},
            "cache.ratio": {"double_value": rng.random()},
            "user.id": {"string_value": f"user-{rng.randrange(10**6):06}"},
            "net.peer": {"string_value": f"10.0.{rng.randrange(256)}.{rng.randrange(256)}"},
        }.items():
            span.attributes.add(key=key).value.CopyFrom(AnyValue(**value))
    return made.SerializeToString()


def by_loop(requests: list[bytes]) -> pa.RecordBatch:
    """The rows of spans by a loop over objects, with the columns that these requests fill."""
    columns: dict[str, list[object]] = {}
    for offset, raw in enumerate(requests):
        index = 0
        for resource in ExportTraceServiceRequest.FromString(raw).resource_spans:
            shared, shared_types = maps(resource.resource.attributes)
            service = dict(shared).get("service.name", "")
            for scope in resource.scope_spans:
                for span in scope.spans:
                    attributes, types = maps(span.attributes)
                    row = {
                        "_offset": offset,
                        "_index": index,
                        "timestamp": span.start_time_unix_nano // 1000,
                        "time_unix_nano": span.start_time_unix_nano,
                        "trace_id": span.trace_id.hex(),
                        "span_id": span.span_id.hex(),
                        "parent_span_id": span.parent_span_id.hex(),
                        "trace_state": span.trace_state,
                        "span_name": span.name,
                        "span_kind": KINDS[span.kind],
                        "service_name": service,
                        "resource_attributes": shared,
                        "resource_attributes_types": shared_types,
                        "scope_name": scope.scope.name,
                        "scope_version": scope.scope.version,
                        "span_attributes": attributes,
                        "span_attributes_types": types,
                        "duration_ns": span.end_time_unix_nano - span.start_time_unix_nano,
                        "status_code": STATUS_CODES[span.status.code],
                        "status_message": span.status.message,
                        "flags": span.flags,
                    }
                    for name, value in row.items():
                        columns.setdefault(name, []).append(value)
                    index += 1
    schema = tables_of(Signal.TRACES)["traces"]
    return pa.RecordBatch.from_pydict(columns, schema=pa.schema([schema.field(name) for name in columns]))


def maps(attributes: list) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    texts, types = [], []
    for one in attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind)
        if kind == "string_value":
            texts.append((one.key, value))
            continue
        text = b64encode(value).decode() if kind == "bytes_value" else str(value).lower()
        texts.append((one.key, text))
        types.append((one.key, TYPES[kind]))
    return texts, types


def processor_seconds(run: Callable[[], object]) -> Callable[[], float]:
    def measure() -> float:
        started = time.process_time()
        run()
        return time.process_time() - started

    return measure


def main() -> None:
    requests = [request(seed) for seed in range(REQUESTS)]
    column = pa.array(requests, pa.binary())
    offsets = pa.array(range(REQUESTS), pa.int64())
    times = pa.array([START_NS // 1000] * REQUESTS, pa.int64()).view(TIME)
    ours = decode(Signal.TRACES, column, offsets, times).rows["traces"]
    loop = by_loop(requests)
    assert all(ours.column(name).equals(loop.column(name)) for name in loop.schema.names if name not in DOUBLES)
    spans = REQUESTS * SPANS
    assert ours.num_rows == spans
    measures = {
        "ours": processor_seconds(lambda: [*decode_parts(Signal.TRACES, column, offsets, times)]),
        "loop": processor_seconds(lambda: by_loop(requests)),
    }
    found = {name: spans / min(seconds) for name, seconds in in_turns(gc.collect, measures, ROUNDS).items()}
    ratio = found["ours"] / found["loop"]
    report(
        f"{REQUESTS} requests of {SPANS} spans, {len(requests[0]) / SPANS:.0f} bytes a span, one core",
        [
            Figure(
                "requests to rows, spans/s",
                f"{found['ours']:,.0f}",
                f"{found['loop']:,.0f} by a loop",
                ratio,
                f">= {SPANS_WANTED:,}",
                found["ours"] >= SPANS_WANTED,
            )
        ],
    )


if __name__ == "__main__":
    main()
