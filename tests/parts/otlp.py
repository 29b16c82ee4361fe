"""A real OTLP receiver over gRPC, on a free port of loopback: it keeps the spans that it is sent."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as services
from opentelemetry.proto.trace.v1.trace_pb2 import Span

WAIT_SECONDS = 60


class Receiver(services.TraceServiceServicer):  # type: ignore[misc]
    def __init__(self) -> None:
        self._more = threading.Condition()
        self.spans: list[Span] = []
        self.headers: dict[str, str] = {}
        self.endpoint = ""

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - as the service has it
        with self._more:
            self.headers |= dict(context.invocation_metadata())
            self.spans += [one for all_ in request.resource_spans for scope in all_.scope_spans for one in scope.spans]
            self._more.notify_all()
        return messages.ExportTraceServiceResponse()

    def wait_for(self, true: Callable[[list[Span]], bool]) -> list[Span]:
        with self._more:
            assert self._more.wait_for(lambda: true(self.spans), WAIT_SECONDS), [one.name for one in self.spans]
            return list(self.spans)


def attributes(span: Span) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    server = grpc.server(ThreadPoolExecutor(2))
    services.add_TraceServiceServicer_to_server(receiver, server)
    receiver.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield receiver
    finally:
        server.stop(0).wait()
