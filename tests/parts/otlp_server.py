"""A real `frazil serve` with telemetry, what its topics hold, and stock senders of OpenTelemetry for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import frazil
from frazil.telemetry.decode import Decoded, decode
from frazil.telemetry.requests import REQUESTS
from frazil.telemetry.signals import Signal, topic_of_signal
from parts.danube import Server


class TelemetryServer(Server):
    """One with telemetry. Its OTLP addresses are known once it has started."""

    grpc = http_url = ""

    def __init__(self, folder: Path, security: bool = False, **telemetry: Any) -> None:
        otlp = {"grpc_port": 0, "http_port": 0, **telemetry.pop("otlp", {})}
        sections = {"telemetry": {"enabled": True, "otlp": otlp, **telemetry}, "security": {"enabled": security}}
        super().__init__(folder, others=sections)

    def start(self) -> dict[str, Any]:
        found = super().start()
        self.grpc, self.otlp = found["otlp_grpc"], found["otlp_http"]
        return found

    def requests(self, signal: Signal, tenant: str = "default", dataset: str = "default", **options: Any) -> Stored:
        """What the topic of a signal holds."""
        with frazil.connect(self.flight, **options) as storage:
            topic = storage.topic(str(topic_of_signal(tenant, dataset, signal)), create=False)
            batches = [batch for batch in topic.read_batches() if len(batch)]
        return Stored(signal, pa.Table.from_batches(batches))


class Stored:
    """Requests as the log has them."""

    def __init__(self, signal: Signal, rows: pa.Table) -> None:
        self.signal = signal
        self.bytes: list[bytes] = rows.column("request").to_pylist()
        self.items: list[int] = rows.column("items").to_pylist()

    @property
    def messages(self) -> Sequence[Any]:
        return [REQUESTS[self.signal].FromString(one) for one in self.bytes]

    def decoded(self) -> Decoded:
        count = len(self.bytes)
        times = pa.array([0] * count, pa.timestamp("us", "UTC"))
        return decode(self.signal, pa.array(self.bytes, pa.binary()), pa.array(range(count), pa.int64()), times)

    def rows(self, table: str) -> list[dict[str, Any]]:
        found = self.decoded()
        assert not len(found.errors), found.errors.to_pylist()
        return list(found.rows[table].to_pylist())


@contextlib.contextmanager
def serving(folder: Path, **settings: Any) -> Iterator[TelemetryServer]:
    server = TelemetryServer(folder, **settings)
    server.start()
    try:
        yield server
        assert "Traceback" not in server.log(), server.log()
    finally:
        server.kill()
