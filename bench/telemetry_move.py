"""Requests of telemetry into tables: the mover on two cores of Spark beside Spark's own `from_protobuf`, its memory,
and the freshness of many tenants: `make bench`.

Both read the same requests of 512 spans and write Parquet with zstd, in turns. `from_protobuf` makes rows of the spans
with Spark's own structs; attributes stay lists of structs, times stay numbers, and nothing is sorted or committed. It
has a process and a Spark of its own, of `.uv/parts/spark-protobuf`, which `make bench` gets: its connector could be had
for no newer one. Without that folder it is left out.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from pyspark.sql import SparkSession

import frazil
from frazil.core.clock import SystemClock
from frazil.core.settings import Settings, make_settings
from frazil.node.movers.log_source import OwnLogs
from frazil.pipeline.move.mover import Mover
from frazil.pipeline.spark.jobs import SparkJobs
from frazil.pipeline.spark.session import open_session, spark_place, warm_up
from frazil.telemetry.signals import Signal, request_schema
from lake_child import Memory, tables_of
from measure import Figure, folder, percentile, report
from telemetry_decode import SPANS, request

PEER = Path(__file__).resolve().parents[1] / ".uv" / "parts" / "spark-protobuf"
SPANS_WANTED, FRESHNESS_SECONDS_WANTED, MEMORY_GROWTH_WANTED = 300_000, 30, 1.25
REQUESTS, ROUNDS = 512, 3
TENANTS, SPANS_PER_SECOND, FRESHNESS_SECONDS = 1_000, 10_000, 120
SPANS_OF_A_SMALL_REQUEST = 50


def append(storage: frazil.Storage, topic: str, requests: list[bytes]) -> int:
    """Return the end of the topic."""
    schema = request_schema(Signal.TRACES)
    rows = pa.RecordBatch.from_arrays([pa.array(requests), pa.array([0] * len(requests), pa.int32())], schema=schema)
    return storage.topic(topic, schema=schema).publish_many(rows).end


def mover_of(session: SparkSession, settings: Settings, storage: frazil.Storage) -> Mover:
    jobs = SparkJobs(session, settings)
    return Mover(settings, OwnLogs(storage), tables_of(settings), jobs, SystemClock(), lambda _: None)


def moved(session: SparkSession, where: Path, requests: list[bytes]) -> tuple[float, list[dict[str, int]]]:
    """Move the requests from a log to a table that is there already; seconds, and memory meanwhile."""
    settings = make_settings({"data": where, "pipeline": {"tasks": 2}})
    with frazil.open(settings) as storage, Memory() as memory:
        mover = mover_of(session, settings, storage)
        append(storage, "/bench.default/traces", requests[:1])
        mover.tick(all_of_it=True)
        for start in range(0, len(requests), 64):
            append(storage, "/bench.default/traces", requests[start : start + 64])
        started, spans = time.perf_counter(), 0
        while (found := mover.tick(all_of_it=True)).rows:
            assert not found.failures, [topic.error for topic in found.topics.values()]
            spans += found.rows
        taken = time.perf_counter() - started
    assert spans == len(requests) * SPANS
    return taken, memory.samples


class Peer:
    """Spark's own `from_protobuf`, in its own process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"from_protobuf did not run; exit {self._process.wait()}: see above")
        return line.strip()

    def wait_ready(self) -> None:
        assert self._line() == "ready"

    def decode(self, where: Path, requests: list[bytes]) -> float:
        """Decode the requests from two Parquet files into others; returns the seconds that it took."""
        source, target = where / "requests", where / "spans"
        source.mkdir(parents=True)
        for part in range(2):
            pq.write_table(pa.table({"request": requests[part::2]}), source / f"{part}.parquet", compression="none")
        assert self._process.stdin is not None
        print(source, target, sep="\t", file=self._process.stdin, flush=True)
        taken = float(self._line())
        assert sum(pq.read_metadata(file).num_rows for file in target.glob("*.parquet")) == len(requests) * SPANS
        return taken


@contextmanager
def peer(where: Path) -> Iterator[Peer | None]:
    """Start Spark with the connector of `make parts`; None if it is not there."""
    (jar, *_) = [*PEER.glob("spark-protobuf_*.jar"), None]
    if jar is None:
        yield None
        return
    where.mkdir(parents=True)
    descriptors = where / "otlp.desc"
    descriptors.write_bytes(_descriptors())
    words = [sys.executable, str(Path(__file__).with_name("protobuf_peer.py")), str(descriptors)]
    more = {"PYTHONPATH": str(PEER / "python"), "SPARK_PROTOBUF_JAR": str(jar), "PYSPARK_PYTHON": sys.executable}
    given = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"} | more
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=given) as process:
        found = Peer(process)
        found.wait_ready()
        yield found
        assert process.stdin is not None
        process.stdin.close()


def _descriptors() -> bytes:
    """The files of the service's messages, with those that they import."""
    found: dict[str, object] = {}
    todo = [trace_service_pb2.DESCRIPTOR]
    while todo:
        one = todo.pop()
        found[one.name] = one
        todo += [each for each in one.dependencies if each.name not in found]
    files = FileDescriptorSet()
    for one in found.values():
        one.CopyToProto(files.file.add())  # type: ignore[attr-defined]
    return files.SerializeToString()


def throughput(session: SparkSession, where: Path, count: int, rounds: int) -> list[Figure]:
    requests = [request(seed) for seed in range(count)]
    spans, ours, theirs, samples = count * SPANS, [], [], []
    with peer(where / "peer") as spark:
        for turn in range(rounds + 1):
            taken, memory = moved(session, where / f"mover-{turn}", requests)
            other = 0.0 if spark is None else spans / spark.decode(where / f"spark-{turn}", requests)
            if turn:
                ours, theirs, samples = [*ours, spans / taken], [*theirs, other], [*samples, memory]
    rate, other = max(ours), max(theirs)
    workers = [max((sample["workers"] for sample in memory), default=0) for memory in samples]
    growth = workers[-1] / max(1, workers[0])
    beside = (
        f"{other:,.0f} by from_protobuf of Spark {_version()}" if other else "no spark-protobuf; see scripts/parts.sh"
    )
    return [
        Figure(
            "spans/s on 2 cores",
            f"{rate:,.0f}",
            beside,
            rate / other if other else 0.0,
            f">= {SPANS_WANTED:,}",
            rate >= SPANS_WANTED,
        ),
        Figure(
            "workers' memory, last round beside first",
            f"{workers[-1] >> 20} MiB",
            f"{workers[0] >> 20} MiB",
            growth,
            f"<= {MEMORY_GROWTH_WANTED}",
            growth <= MEMORY_GROWTH_WANTED,
        ),
    ]


def _version() -> str:
    (jar, *_) = PEER.glob("spark-protobuf_*.jar")
    return jar.stem.rpartition("-")[2]


def freshness(session: SparkSession, where: Path, seconds: int, tenants: int) -> list[Figure]:
    """Each tenant sends a small request in turn; a request is fresh once the commit with it is done."""
    settings = make_settings({"data": where, "pipeline": {"tasks": 2}, "telemetry": {"freshness_ms": 5_000}})
    small = request(1, SPANS_OF_A_SMALL_REQUEST)
    pause = SPANS_OF_A_SMALL_REQUEST / SPANS_PER_SECOND
    with frazil.open(settings) as storage:
        mover, stop = mover_of(session, settings, storage), threading.Event()
        names = [f"/t{number:04}.default/traces" for number in range(tenants)]
        for name in names:
            append(storage, name, [small])
        while mover.tick(all_of_it=True).rows:  # the tables are there before the clock runs
            pass
        appended: dict[str, list[tuple[int, int]]] = {name: [] for name in names}

        def send() -> None:
            order, next_s = random.Random(1), time.perf_counter()
            while not stop.is_set():
                name = order.choice(names)
                end = append(storage, name, [small])
                appended[name].append((end, SystemClock().now_us()))
                next_s += pause
                stop.wait(max(0.0, next_s - time.perf_counter()))

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        ages, ends, until = [], dict.fromkeys(names, 1), time.perf_counter() + seconds
        ticks: list[float] = []
        while time.perf_counter() < until:
            started = time.perf_counter()
            found = mover.tick()
            if found.rows:
                ticks.append(time.perf_counter() - started)
            for name, topic in found.topics.items():
                if topic.moved is not None:
                    ages += [
                        (topic.moved.committed_us - at) / 1e6
                        for end, at in appended[name]
                        if ends[name] < end <= topic.moved.end
                    ]
                    ends[name] = topic.moved.end
        stop.set()
        sender.join()
    late = [(SystemClock().now_us() - at) / 1e6 for name in names for end, at in appended[name] if end > ends[name]]
    p99 = percentile([*ages, *[age for age in late if age > FRESHNESS_SECONDS_WANTED]], 0.99)
    shown = f"{tenants} tenants, {SPANS_PER_SECOND:,} spans/s, longest tick {max(ticks, default=0):.1f} s"
    is_met = p99 <= FRESHNESS_SECONDS_WANTED
    ratio = p99 / FRESHNESS_SECONDS_WANTED
    return [Figure("freshness p99", f"{p99:.1f} s", shown, ratio, f"<= {FRESHNESS_SECONDS_WANTED} s", is_met)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=FRESHNESS_SECONDS, help="of the run with many tenants")
    parser.add_argument("--tenants", type=int, default=TENANTS)
    parser.add_argument("--requests", type=int, default=REQUESTS, help="of each round")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", choices=("throughput", "freshness"))
    asked = parser.parse_args()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    session = open_session(spark_place("local[2]"))
    warm_up(session)
    with folder() as where:
        figures = (
            [] if asked.only == "freshness" else throughput(session, where / "throughput", asked.requests, asked.rounds)
        )
        if asked.only != "throughput":
            figures += freshness(session, where / "freshness", asked.seconds, asked.tenants)
    report(f"requests of {SPANS} spans into tables on two cores", figures)


if __name__ == "__main__":
    main()
