"""Responses to export requests: empty, or with `partial_success`, in Protobuf and JSON."""

from __future__ import annotations

import json
from typing import NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from frazil.telemetry.protobuf_bytes import BYTES, VARINT, sized, tag, varint
from frazil.telemetry.signals import Signal


class Rejected(NamedTuple):
    """What was left out of a request of which the rest is stored: `partial_success` of the response.

    The message alone, without items, is a warning: a metric without points was left out.
    """

    items: int = 0
    message: str = ""

    @classmethod
    def of_response(cls, response: bytes) -> Rejected:
        """Read the response of another broker, which is the same for all signals but for names."""
        found = ExportTraceServiceResponse.FromString(response).partial_success
        return cls(found.rejected_spans, found.error_message)

    def and_also(self, other: Rejected) -> Rejected:
        return Rejected(self.items + other.items, self.message or other.message)

    def as_protobuf(self) -> bytes:
        if not self.message:
            return b""
        found = tag(1, VARINT) + varint(self.items) + tag(2, BYTES) + sized(self.message.encode())
        return tag(1, BYTES) + sized(found)

    def as_json(self, signal: Signal) -> bytes:
        if not self.message:
            return b"{}"
        return json.dumps(
            {"partialSuccess": {_REJECTED[signal]: str(self.items), "errorMessage": self.message}}
        ).encode()


_REJECTED = {
    Signal.TRACES: "rejectedSpans",
    Signal.LOGS: "rejectedLogRecords",
    Signal.METRICS: "rejectedDataPoints",
}
