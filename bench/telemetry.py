"""Ingest of telemetry over OTLP, beside bare gRPC and a bare disk in the same run: `make bench`.

Processes send ready-made requests of 512 spans, over gRPC, over HTTP, and to a bare grpc.aio server that answers at
once. They take turns in short rounds. The disk's limit is write and fdatasync of one request after the other.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from broker import HERE, bare_grpc
from measure import BareFile, Figure, folder, percentile, report
from telemetry_decode import SPANS, request

SPANS_WANTED, P99_MS_WANTED, HTTP_SHARE_WANTED = 300_000, 20, 0.7
PROCESSES, SENDERS, REQUESTS, ROUNDS = 2, 4, 400, 5
DISK_BYTES = 256 * 1024 * 1024


@contextlib.contextmanager
def frazil_serve(where: Path) -> Iterator[dict[str, str]]:
    """The addresses of its doors."""
    ports = ["--port", "0", "--flight-port", "0", "--broker-port", "0", "--admin-port", "0"]
    command = [sys.executable, "-m", "frazil", "serve", "--no-pipeline", "--json", "--data", str(where), *ports]
    otlp = {"FRAZIL_TELEMETRY__OTLP__GRPC_PORT": "0", "FRAZIL_TELEMETRY__OTLP__HTTP_PORT": "0"}
    environment = {**os.environ, "FRAZIL_TELEMETRY__ENABLED": "true", **otlp}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


class Senders:
    """Processes that send to one address, together."""

    def __init__(self, kind: str, address: str, requests: int) -> None:
        self._requests = requests
        command = [sys.executable, str(HERE / "telemetry_sender.py"), kind, address, str(requests), str(SENDERS)]
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(PROCESSES)
        ]
        self.rates: list[float] = []
        self.taken: list[float] = []
        for process in self._processes:
            self._line(process)

    def round(self, *, counts: bool) -> None:
        started = time.perf_counter()
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        found = [json.loads(self._line(process)) for process in self._processes]
        seconds = time.perf_counter() - started
        if counts:
            taken = [one for each in found for one in each["taken"]]
            self.rates.append(len(taken) * SPANS / seconds)
            self.taken += taken

    @property
    def rate(self) -> float:
        return percentile(self.rates, 0.5)

    def end(self) -> None:
        for process in self._processes:
            process.communicate(timeout=20)

    @staticmethod
    def _line(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "a sender has failed"
        return line


def bare_disk(where: Path) -> float:
    """Spans a second of requests that are written and synced one by one."""
    data, count = request(0), 200
    file = BareFile(where / "bare", DISK_BYTES)
    try:
        return SPANS / percentile([file.write(data) for _ in range(count)], 0.5)
    finally:
        file.close()


def ingest(where: Path, rounds: int, requests: int) -> list[Figure]:
    with frazil_serve(where / "data") as addresses, bare_grpc("bare_otlp.py") as bare:
        senders = {
            "grpc": Senders("grpc", addresses["otlp_grpc"], requests),
            "http": Senders("http", addresses["otlp_http"], requests),
            "bare": Senders("grpc", bare, requests),
        }
        for turn in range(rounds + 1):
            for one in senders.values():
                one.round(counts=turn > 0)
        for one in senders.values():
            one.end()
    disk = bare_disk(where)
    mine, peer, http = (senders[name].rate for name in ("grpc", "bare", "http"))
    p99_ms = {name: percentile(one.taken, 0.99) * 1e3 for name, one in senders.items()}
    return [
        _rate("OTLP/gRPC, durable", mine, SPANS_WANTED, f"{SPANS_WANTED:,}/s", f"≥ {SPANS_WANTED:,}/s"),
        Figure(
            "its p99", f"{p99_ms['grpc']:.1f} ms", f"{p99_ms['bare']:.1f} ms", p99_ms["grpc"] / p99_ms["bare"],
            f"≤ {P99_MS_WANTED} ms", p99_ms["grpc"] <= P99_MS_WANTED,
        ),
        Figure("beside bare gRPC", f"{mine:,.0f}/s", f"{peer:,.0f}/s", mine / peer, "-", True),
        Figure("beside the bare disk, one by one", f"{mine:,.0f}/s", f"{disk:,.0f}/s", mine / disk, "-", True),
        _rate("OTLP/HTTP beside OTLP/gRPC", http, mine, f"{mine:,.0f}/s", f"≥ {HTTP_SHARE_WANTED}", HTTP_SHARE_WANTED),
        Figure("its p99", f"{p99_ms['http']:.1f} ms", f"{p99_ms['grpc']:.1f} ms", p99_ms["http"] / p99_ms["grpc"], "-",
               True),
    ]  # fmt: skip


def _rate(name: str, found: float, limit: float, shown: str, wanted: str, share: float = 1.0) -> Figure:
    return Figure(name, f"{found:,.0f}/s", shown, found / limit, wanted, found >= share * limit)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--requests", type=int, default=REQUESTS, help="of each process in each round")
    given = parser.parse_args()
    size = len(request(0)) // SPANS
    with folder() as where:
        figures = ingest(where.absolute(), given.rounds, given.requests)
        title = f"Telemetry: requests of {SPANS} spans, {size} bytes a span, {PROCESSES} processes of {SENDERS} senders"
        report(title, figures)


if __name__ == "__main__":
    main()
