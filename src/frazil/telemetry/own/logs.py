"""Log records of this process as export requests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from frazil.telemetry.own.values import Attributes, any_value, clean_text, key_values, resource_of, scope_of_frazil


class OwnRecord(NamedTuple):
    time_ns: int
    severity: int
    severity_text: str
    body: str
    attributes: Attributes


def severity_of(level: int) -> int:
    """Return OpenTelemetry's number of one of Python's levels."""
    for least, number in ((50, 21), (40, 17), (30, 13), (20, 9), (10, 5)):
        if level >= least:
            return number
    return 1


def log_request(records: Iterable[OwnRecord], resource: Attributes, version: str) -> bytes:
    request = ExportLogsServiceRequest()
    all_ = request.resource_logs.add(resource=resource_of(resource))
    scope = all_.scope_logs.add(scope=scope_of_frazil(version))
    for one in records:
        scope.log_records.append(
            LogRecord(
                time_unix_nano=one.time_ns,
                observed_time_unix_nano=one.time_ns,
                severity_number=one.severity,  # type: ignore[arg-type]
                severity_text=one.severity_text,
                body=any_value(clean_text(one.body)),
                attributes=key_values(one.attributes),
            )
        )
    return bytes(request.SerializeToString())
