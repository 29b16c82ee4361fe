"""Whether anything grows while Frazil runs: a server, its mover and publishers at a steady rate, for an hour.

    python bench/soak.py                         an hour, 1,000 messages a second, a move every 200 ms
    python bench/soak.py --minutes 4 --every 2   a short look

Each figure of the last tenth of the run stands beside that of the second tenth (the first one is for warming up). What
is meant to grow with the rows (bytes of the disk) is taken by its growth per message, in the second half of the run
beside the first half. A run of a few minutes shows the JVM, the replay cache and the number of snapshots while they
still fill up: its verdict on these says nothing. Nothing here is a test.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import frazil
from frazil.core.settings import Settings
from frazil.lake.catalogs.opening import open_catalog
from measure import Figure, folder, percentile, report
from soak_processes import look_at_processes

TOPIC = "/soak/orders"
TABLE = ("soak", "orders")
STEP_S = 0.02
START_S_MAX = 180
MINUTES_MIN = 20
SEGMENT_BYTES = 4 * 1024 * 1024
"""Segments are preallocated: with large ones the disk grows in steps that are as large as what is measured."""
RATIO_MAX = 1.2
TAIL_RATIO_MAX = 1.5
"""Of p99, which one pause of the machine decides."""
FLOORS = {"threads": 5.0, "files": 10.0, "rss_mb": 20.0, "ms": 50.0, "count": 5.0, "kb": 20.0}
"""Differences below these are noise, whatever their ratio is."""


@dataclass
class Sample:
    """What was seen in one interval. Figures are by name."""

    at_s: float
    figures: dict[str, float] = field(default_factory=dict)


class Publishers:
    """Sends `rate` messages a second until it is stopped, and counts those that are acknowledged."""

    def __init__(self, address: str, rate: int, message_bytes: int) -> None:
        self._storage = frazil.connect(address)
        self._topic = self._storage.topic(TOPIC)
        self._rate = rate
        self._message = os.urandom(message_bytes)
        self._stop = threading.Event()
        self._taken_ms: list[float] = []
        self._guard = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.published = 0
        self.error: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    def taken_ms(self) -> list[float]:
        """The times of acknowledgement since the last call."""
        with self._guard:
            taken, self._taken_ms = self._taken_ms, []
            return taken

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)
        self._storage.close()

    def _run(self) -> None:
        began = time.monotonic()
        try:
            while not self._stop.wait(STEP_S):
                due = int((time.monotonic() - began) * self._rate) - self.published
                if due <= 0:
                    continue
                started = time.perf_counter()
                self._topic.publish_many([self._message] * min(due, self._rate))
                with self._guard:
                    self._taken_ms.append((time.perf_counter() - started) * 1e3)
                self.published += min(due, self._rate)
        except Exception as error:  # noqa: BLE001 - told at the end of the run
            self.error = error


class Watch:
    """Asks the server and the status file of the mover several times a second."""

    def __init__(self, http: str, data: Path) -> None:
        self._url = f"{http}/metrics"
        self._status = data / "~pipeline.json"
        self._stop = threading.Event()
        self._guard = threading.Lock()
        self._freshness_ms: list[float] = []
        self._moves: dict[int, tuple[float, float]] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.has_moved = False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)

    def seen(self) -> tuple[list[float], list[float], list[float]]:
        """Freshness, times of commits and times of whole moves since the last call, in ms."""
        with self._guard:
            freshness, self._freshness_ms = self._freshness_ms, []
            moves, self._moves = self._moves, {}
        return freshness, [commit for commit, _ in moves.values()], [whole for _, whole in moves.values()]

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            with contextlib.suppress(OSError, ValueError, KeyError):  # the server may be busy, the file half there
                self._look()

    def _look(self) -> None:
        moved = json.loads(self._status.read_text())["topics"].get(TOPIC, {}).get("moved")
        with urllib.request.urlopen(self._url, timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        gauge = f'frazil_table_freshness_seconds{{topic="{TOPIC}"}}'
        ages = [float(line.rsplit(" ", 1)[1]) * 1e3 for line in lines if line.startswith(gauge)]
        with self._guard:
            self._freshness_ms += ages
            if moved:
                self.has_moved = True
                commit = (moved["committed_us"] - moved["written_us"]) / 1e3
                self._moves[moved["end"]] = (commit, (moved["committed_us"] - moved["started_us"]) / 1e3)


@contextlib.contextmanager
def serving(data: Path, flush_ms: int) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """A server with its mover; its addresses."""
    ports = ["--port", "0", "--flight-port", "0", "--broker-port", "0", "--admin-port", "0"]
    command = [sys.executable, "-m", "frazil", "serve", "--json", "--data", str(data), *ports]
    environment = {**os.environ, "FRAZIL_WRITER__FLUSH_INTERVAL_MS": str(flush_ms)}
    environment["FRAZIL_WAL__MAX_FILE_SIZE"] = str(SEGMENT_BYTES)
    with Path(f"{data}.log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
            process.stdout.close()


def look_at_table(data: Path) -> dict[str, float]:
    table = open_catalog(Settings(data=data)).load_table(TABLE)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    place = Path(table.location().removeprefix("file://"))
    metadata = [path.stat().st_size for path in (place / "metadata").iterdir() if path.exists()]
    return {
        "table metadata, kB": Path(table.metadata_location.removeprefix("file://")).stat().st_size / 1e3,
        "snapshots, count": len(table.snapshots()),
        "manifests, count": len(snapshot.manifests(table.io)),
        "disk: metadata folder, bytes a message": sum(metadata),
        "disk: data folder, bytes a message": disk_bytes(data),
    }


def disk_bytes(where: Path) -> int:
    total = 0
    for parent, _, names in os.walk(where):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # segments and metadata come and go
                total += (Path(parent) / name).stat().st_blocks * 512
    return total


def soak(minutes: float, every_s: float, rate: int, message_bytes: int, flush_ms: int) -> list[Sample]:
    samples: list[Sample] = []
    with folder() as where, serving(where / "data", flush_ms) as (server, addresses):
        publishers = Publishers(addresses["flight"], rate, message_bytes)
        watch = Watch(addresses["address"], where / "data")
        publishers.start()
        watch.start()
        try:
            wait_until(lambda: watch.has_moved, server, where)
            began = time.monotonic()
            while time.monotonic() - began < minutes * 60:
                time.sleep(every_s)
                if publishers.error is not None:
                    raise publishers.error
                if server.poll() is not None:
                    sys.exit(f"the server has ended with code {server.returncode}")
                samples.append(sampled(time.monotonic() - began, server.pid, publishers, watch, where / "data"))
                show(samples[-1])
        finally:
            publishers.stop()
            watch.stop()
    return samples


def wait_until(is_so: Callable[[], bool], server: subprocess.Popen[str], where: Path) -> None:
    for _ in range(START_S_MAX * 10):
        if is_so():
            return
        if server.poll() is not None:
            break
        time.sleep(0.1)
    sys.exit("no row was moved:\n" + (where / "data.log").read_text()[-2_000:])


def sampled(at_s: float, pid: int, publishers: Publishers, watch: Watch, data: Path) -> Sample:
    sample = Sample(at_s)
    freshness, commits, moves = watch.seen()
    for name, values in (
        ("freshness", freshness),
        ("commit", commits),
        ("move", moves),
        ("publish", publishers.taken_ms()),
    ):
        if values:
            sample.figures[f"{name} p50, ms"] = statistics.median(values)
            sample.figures[f"{name} p99, ms"] = percentile(values, 0.99)
    sample.figures |= look_at_table(data)
    sample.figures |= look_at_processes(pid)
    sample.figures["messages"] = publishers.published
    return sample


def show(sample: Sample) -> None:
    wanted = ("freshness p50, ms", "freshness p99, ms", "commit p50, ms", "table metadata, kB", "snapshots, count")
    values = (f"{name} {sample.figures[name]:,.0f}" for name in wanted if name in sample.figures)
    memory = sum(value for name, value in sample.figures.items() if name.endswith("rss_mb"))
    print(f"{sample.at_s:7.0f} s   {'   '.join(values)}   memory, MB {memory:,.0f}", flush=True)


def judged(samples: list[Sample]) -> list[Figure]:
    """The last tenth beside the second one, figure by figure; of what grows, one half beside the other."""
    tenth, half = max(1, len(samples) // 10), len(samples) // 2
    early, late = samples[tenth : 2 * tenth + 1], samples[-tenth - 1 :]
    names = sorted({name for sample in (*early, *late) for name in sample.figures} - {"messages"})
    found = []
    for name in names:
        if name.endswith("bytes a message"):
            figure = compared(name, growth(name, samples[tenth : half + 1]), growth(name, samples[half:]))
        else:
            figure = compared(name, typical(name, early), typical(name, late))
        found.append(figure)
    return [figure for figure in found if figure is not None]


def compared(name: str, before: float | None, after: float | None) -> Figure | None:
    if before is None or after is None:
        return None
    ratio = after / before if before > 0 else (1.0 if after <= 0 else float("inf"))
    most = TAIL_RATIO_MAX if "p99" in name else RATIO_MAX
    floor = FLOORS.get(name.rsplit(", ", 1)[-1].lower(), 0.0)
    met = ratio <= most or after - before <= floor
    return Figure(name, f"{after:,.1f}", f"{before:,.1f}", ratio, f"≤ {most}", met)


def typical(name: str, part: list[Sample]) -> float | None:
    values = [sample.figures[name] for sample in part if name in sample.figures]
    return statistics.median(values) if values else None


def growth(name: str, part: list[Sample]) -> float | None:
    first, last = part[0].figures, part[-1].figures
    messages = last["messages"] - first["messages"]
    return (last[name] - first[name]) / messages if messages > 0 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--every", type=float, default=10, help="seconds between samples")
    parser.add_argument("--rate", type=int, default=1_000, help="messages a second")
    parser.add_argument("--message-bytes", type=int, default=200)
    parser.add_argument("--flush-interval-ms", type=int, default=200)
    parser.add_argument("--json", type=Path, help="write all samples and the verdict to this file")
    asked = parser.parse_args()
    samples = soak(asked.minutes, asked.every, asked.rate, asked.message_bytes, asked.flush_interval_ms)
    if len(samples) < 3:
        sys.exit("too few samples for a verdict: take more minutes, or --every less")
    figures = judged(samples)
    if asked.json is not None:
        asked.json.write_text(json.dumps(as_json(samples, figures), indent=1))
    report(f"soak: {asked.minutes:g} minutes, {asked.rate:,} messages/s; last tenth beside the second", figures)
    if asked.minutes < MINUTES_MIN:
        print(f"less than {MINUTES_MIN} minutes: what still fills up is shown as growth")
    sys.exit(0 if all(figure.met for figure in figures) else 1)


def as_json(samples: list[Sample], figures: list[Figure]) -> dict[str, Any]:
    return {
        "samples": [{"at_s": sample.at_s, **sample.figures} for sample in samples],
        "verdict": [
            {"figure": each.name, "last": each.measured, "second": each.limit, "ratio": each.ratio, "met": each.met}
            for each in figures
        ],
    }


if __name__ == "__main__":
    main()
