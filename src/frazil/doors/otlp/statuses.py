"""Errors as `google.rpc.Status`, in Protobuf and JSON: the details of a gRPC status, and the body over HTTP.

A sender tries again after UNAVAILABLE, and after RESOURCE_EXHAUSTED if the details have a `RetryInfo`. So each error
that passes has one, with the time to wait.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration

from frazil.core.errors import FrazilError, OutcomeUnknown, TryLater
from frazil.doors.errors import status_of
from frazil.telemetry.protobuf_bytes import BYTES, fields_of, sized, tag

RETRY_AFTER_MS = 1_000
"""For an error that passes and does not say when."""
_RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"
_CODES = {
    "INVALID_ARGUMENT": 3,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "FAILED_PRECONDITION": 9,
    "UNIMPLEMENTED": 12,
    "INTERNAL": 13,
    "UNAVAILABLE": 14,
    "UNAUTHENTICATED": 16,
}


DETAILS = "grpc-status-details-bin"
"""The trailer that has it."""


class OtlpStatus(NamedTuple):
    """The name of the gRPC status, the message, and when to try again, if at all."""

    name: str
    message: str
    retry_after_ms: int | None = None

    def as_protobuf(self) -> bytes:
        details = b""
        if self.retry_after_ms is not None:
            seconds, ms = divmod(self.retry_after_ms, 1_000)
            delay = Duration(seconds=seconds, nanos=ms * 1_000_000).SerializeToString()
            packed = AnyMessage(type_url=_RETRY_INFO, value=_field(1, delay)).SerializeToString()
            details = _field(3, packed)
        return b"\x08" + bytes([_CODES[self.name]]) + _field(2, self.message.encode()) + details

    def as_json(self) -> bytes:
        found: dict[str, object] = {"code": _CODES[self.name], "message": self.message}
        if self.retry_after_ms is not None:
            found["details"] = [{"@type": _RETRY_INFO, "retryDelay": f"{self.retry_after_ms / 1_000:g}s"}]
        return json.dumps(found).encode()


class StatusError(Exception):
    """A request that another broker has refused."""

    def __init__(self, status: OtlpStatus) -> None:
        super().__init__(status.message)
        self.status = status


def retry_after_ms(details: bytes) -> int | None:
    """Return when to try again, from a `google.rpc.Status` that another broker has written."""
    for field in fields_of(details, 0, len(details)):
        if field.number == 3:
            packed = AnyMessage.FromString(details[field.value : field.end])
            if packed.type_url == _RETRY_INFO:
                delay = next(fields_of(packed.value, 0, len(packed.value)))
                return Duration.FromString(packed.value[delay.value : delay.end]).ToMilliseconds()
    return None


def otlp_status(error: FrazilError) -> OtlpStatus:
    wait_ms = None
    if isinstance(error, TryLater | OutcomeUnknown):
        given = error.fields.get("retry_after_ms")
        wait_ms = given if isinstance(given, int) else RETRY_AFTER_MS
    return OtlpStatus(status_of(error).grpc, error.message, wait_ms)


def _field(number: int, value: bytes) -> bytes:
    """Return a field of bytes, text or a message."""
    return tag(number, BYTES) + sized(value)
