"""The mover beside Spark's own Iceberg append, its freshness, many topics, and its memory: `make bench`.

What is compared takes turns in one run, so that a noisy neighbour meets both. Nothing here is a test.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

import frazil
from frazil.core.names import TopicName
from frazil.core.settings import Settings, make_settings
from frazil.doors.flight.door import flight_door
from frazil.lake.tables.look import TableLook
from frazil.lake.tables.schema import table_of
from frazil.log.folder.ownership import published_addresses
from frazil.log.info import log_info
from measure import Figure, folder, percentile, report

MIB = 1024 * 1024
HERE = Path(__file__).resolve().parent
JARS = HERE.parent / ".uv" / "parts" / "iceberg"
MESSAGE_BYTES = 210
BATCH = 10_000


class Child:
    """A process that answers one JSON line with another."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if not os.environ.get("FRAZIL_BENCH_LOUD") else None,
            text=True,
        )

    def ask(self, **what: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args!r} ended; set FRAZIL_BENCH_LOUD=1 to see why")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


@contextlib.contextmanager
def child(*command: str) -> Iterator[Child]:
    started = Child(*command)
    try:
        yield started
    finally:
        started.end()


def messages(count: int, seed: int) -> list[bytes]:
    """JSON of about 210 bytes, as events are: some of it repeats, some does not."""
    rng = random.Random(seed)
    found = []
    for number in range(count):
        event = {"id": rng.getrandbits(64), "user": rng.randrange(100_000), "kind": rng.choice(("view", "cart", "buy"))}
        text = json.dumps({**event, "n": number, "note": ""})
        note = f"{rng.getrandbits(600):0150x}"[: MESSAGE_BYTES - len(text)]
        found.append(text.replace('""', json.dumps(note)).encode())
    return found


def fill(topic: frazil.Topic, rows: int) -> None:
    some = messages(BATCH, 1)
    for start in range(0, rows, BATCH):
        topic.publish_many(some[: min(BATCH, rows - start)])


def throughput(where: Path, rows: int = 2_000_000, rounds: int = 3) -> list[Figure]:
    """The same log moved by us and appended by Spark, in turns; each has moved some before it counts."""
    with frazil.open(where / "log") as storage:
        fill(storage.topic("/bench/all"), rows)
        info = log_info(storage, "/bench/all")
    pieces = 2 * (os.cpu_count() or 2)
    ranges = [(rows * at // pieces, rows * (at + 1) // pieces) for at in range(pieces)]
    files = [(base, str(path)) for base, path in info.files]
    jars = ",".join(str(path) for path in sorted(JARS.glob("*.jar")))
    ours: list[float] = []
    peer: list[float] = []
    with (
        child(str(HERE / "lake_child.py")) as mover,
        child(str(HERE / "spark_append.py"), jars, f"file://{where / 'peer'}") as spark,
    ):
        for turn in range(rounds + 1):
            shutil.rmtree(where / "mine", ignore_errors=True)
            mine = {"wal": {"base_path": str(where / "log" / "log")}}
            moved = mover.ask(do="move", data=str(where / "mine"), settings=mine)
            appended = spark.ask(log_id=info.log_id, files=files, ranges=ranges)
            assert moved["rows"] == appended["rows"] == rows
            if turn:  # the first warms both
                ours.append(rows / moved["seconds"])
                peer.append(rows / appended["seconds"])
            shutil.rmtree(where / "peer" / "bench", ignore_errors=True)
    mine_rate, peer_rate = statistics.median(ours), statistics.median(peer)
    ratio = mine_rate / peer_rate
    mb = info.size_bytes / rows * mine_rate / 1e6
    return [
        Figure(
            f"moving {rows:,} messages of {MESSAGE_BYTES} B ({mb:,.0f} MB/s of log), beside Spark's append",
            f"{mine_rate:,.0f}/s",
            f"{peer_rate:,.0f}/s",
            ratio,
            "≥ 2.5",
            ratio >= 2.5,
        )
    ]


def local_freshness(where: Path) -> list[Figure]:
    settings = make_settings({"data": where / "data", "writer": {"flush_interval_ms": 500}, "flight": {"port": 0}})
    return freshness(settings, {}, 60.0, 1_000, {0.5: 1.0, 0.99: 2.0})


def freshness(
    settings: Settings,
    environment: Mapping[str, str],
    seconds: float,
    per_second: int,
    limits: Mapping[float, float],
    where: str = "",
) -> list[Figure]:
    """From the acknowledgement to the snapshot that any reader of the catalog sees, under steady load.

    `limits` has the seconds that are wanted by share of the messages.
    """
    acked: list[float] = []
    seen: list[float] = []
    with frazil.open(settings) as storage, _mover_beside(storage, settings, environment):
        topic = storage.topic("/bench/fresh")
        log_id = log_info(storage, topic.name).log_id
        topic.publish(b"first")
        acked.append(time.perf_counter())
        _wait_for(settings, log_id, 1)
        stop = threading.Event()
        watcher = threading.Thread(target=_watch, args=(settings, log_id, acked, seen, stop))
        watcher.start()
        started = time.perf_counter()
        sent, each, some = 1, max(1, per_second // 100), messages(1_000, 2)
        while (now := time.perf_counter()) < started + seconds:
            due = int((now - started) * per_second) + 1
            while sent < due:
                topic.publish_many(some[:each])
                acked += [time.perf_counter()] * each
                sent += each
            stop.wait(0.005)
        _wait_for(settings, log_id, sent)
        stop.set()
        watcher.join()
    settled = seen[len(seen) // 10 :]
    found = []
    for share, limit in limits.items():
        value = percentile(settled, share)
        name = f"freshness {where}p{share * 100:.0f}, {per_second:,}/s, flush_interval_ms 500"
        found.append(Figure(name, f"{value:.2f} s", f"{limit:.1f} s", value / limit, "≤ 1", value <= limit))
    return found


@contextlib.contextmanager
def _mover_beside(storage: frazil.Storage, settings: Settings, more: Mapping[str, str]) -> Iterator[None]:
    """`frazil pipeline run` as a process of its own, which learns from this one what is durable."""
    command = [sys.executable, "-m", "frazil", "pipeline", "run", "--data", str(settings.data)]
    interval = {"FRAZIL_WRITER__FLUSH_INTERVAL_MS": str(settings.writer.flush_interval_ms)}
    environment = {**os.environ, **interval, **more}
    with (
        flight_door(storage, settings.flight, movers=True) as door,
        published_addresses(settings, {"flight": door.address}),
    ):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment)
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


def _end(settings: Settings, log_id: str) -> int:
    name, _ = table_of(TopicName.parse("/bench/fresh"))
    return TableLook(settings).at(name, log_id).end or 0


def _wait_for(settings: Settings, log_id: str, end: int) -> None:
    stop_at = time.perf_counter() + 120
    while _end(settings, log_id) < end:
        if time.perf_counter() > stop_at:
            raise SystemExit(f"the table has not reached offset {end} in two minutes")
        threading.Event().wait(0.05)


def _watch(settings: Settings, log_id: str, acked: list[float], seen: list[float], stop: threading.Event) -> None:
    at = _end(settings, log_id)
    while not stop.wait(0.02):
        end = _end(settings, log_id)
        now = time.perf_counter()
        seen += [now - acked[offset] for offset in range(at, end)]
        at = end


def many_topics(where: Path) -> list[Figure]:
    """One tick over 1, 50 and 500 topics that each got ten messages: what a topic costs."""
    costs: dict[int, float] = {}
    with child(str(HERE / "lake_child.py")) as mover:
        for count in (1, 50, 500):
            data = where / f"topics-{count}"
            ticks = []
            for turn in range(4):
                with frazil.open(data) as storage:
                    for number in range(count):
                        storage.topic(f"/bench/t{number}").publish_many([b"trickle"] * 10)
                answer = mover.ask(do="tick", data=str(data))
                assert answer["rows"] == 10 * count
                if turn:  # the first makes the tables
                    ticks.append(answer["seconds"])
            costs[count] = statistics.median(ticks) / count
    alone = costs[1]
    return [
        Figure(
            f"one tick over {count} topics: cost of a topic (tick {costs[count] * count:.2f} s)",
            f"{costs[count] * 1e3:,.1f} ms",
            f"{alone * 1e3:,.1f} ms",
            costs[count] / alone,
            "≤ 0.5" if count > 1 else "= 1",
            count == 1 or costs[count] / alone <= 0.5,
        )
        for count in costs
    ]


def memory(where: Path, limit_mib: int = 32) -> list[Figure]:
    """Driver, JVM and workers while twenty times the limit goes through, in the last third beside the first."""
    with frazil.open(where / "data") as storage:
        topic = storage.topic("/bench/much")
        batch = pa.array(messages(BATCH, 3))
        size = 0
        while size < 20 * limit_mib * MIB:
            topic.publish_many(batch.to_pylist())
            size += batch.nbytes
    with child(str(HERE / "lake_child.py")) as mover:
        knobs = {"writer": {"max_memory_bytes": limit_mib * MIB}}
        samples = mover.ask(do="move", data=str(where / "data"), settings=knobs)["memory"]
    found = []
    third = max(1, len(samples) // 3)
    for part in ("driver", "jvm", "workers"):
        early = max(sample[part] for sample in samples[:third]) / MIB
        late = max(sample[part] for sample in samples[-third:]) / MIB
        name = f"memory of {part}, {size / MIB:,.0f} MiB moved under a limit of {limit_mib} MiB"
        found.append(Figure(name, f"{late:,.0f} MiB", f"{early:,.0f} MiB", late / early, "≤ 1.2", late <= 1.2 * early))
    return found


PARTS: dict[str, Callable[[Path], list[Figure]]] = {
    "throughput": throughput,
    "freshness": local_freshness,
    "topics": many_topics,
    "memory": memory,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"any of {', '.join(PARTS)}; all if none")
    parser.add_argument("--s3", action="store_true", help="on a REST catalog and S3: any of moving, freshness, cold")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--share", type=int, default=1, help="with --s3, only one N-th of it, for a first look")
    arguments = parser.parse_args()
    known: Mapping[str, Callable[[Path], list[Figure]]] = s3_parts(arguments.share) if arguments.s3 else PARTS
    unknown = set(arguments.parts) - set(known)
    if unknown:
        parser.error(f"unknown part {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    figures: list[Figure] = []
    for part in arguments.parts or known:
        with folder() as where:
            figures += known[part](where.absolute())
    if arguments.json:
        sys.stdout.write(json.dumps([asdict(figure) for figure in figures]) + "\n")
    else:
        report("The mover on a REST catalog and S3" if arguments.s3 else "The mover", figures)


def s3_parts(share: int) -> dict[str, Callable[[Path], list[Figure]]]:
    import lake_s3  # which imports this module

    return {part: functools.partial(lake_s3.measured, part, share=share) for part in lake_s3.PARTS}


if __name__ == "__main__":
    main()
