"""A streaming query killed at random moments, while rows are published, moved and removed: its sink has each once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from stream_child import TOPIC, start_query

import frazil
from parts.moving import Floor, HandMover, open_guarded

CHILD = Path(__file__).with_name("stream_child.py")
PARTITIONS = 2


@contextlib.contextmanager
def child(data: Path, sink: Path) -> Iterator[subprocess.Popen[str]]:
    """With its JVM and its workers, none of which outlives it here."""
    command = [sys.executable, str(CHILD), str(data), str(sink)]
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait(30)
        if started.stdout is not None:
            started.stdout.close()


class Publisher:
    """Publishes to both partitions, moves most of it and lets retention remove what was moved, until told to stop."""

    def __init__(self, settings: frazil.Settings) -> None:
        self._settings = settings
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.ends: dict[int, int] = {}
        self.removed = 0
        self.error: Exception | None = None
        self.ready = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self.ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        try:
            self._publish()
        except Exception as error:  # noqa: BLE001 - the test raises it
            self.error = error
        finally:
            self.ready.set()

    def _publish(self) -> None:
        floor = Floor()
        with open_guarded(self._settings, floor) as storage:
            topics = [storage.topic(f"{TOPIC}-part-{number}") for number in range(PARTITIONS)]
            mover = HandMover(self._settings)
            for turn in range(1_000_000):
                for number, topic in enumerate(topics):
                    start = topic.stats().end
                    topic.publish_many([f"{number}:{start + at}".ljust(300).encode() for at in range(20)])
                    if turn % 5 == 0:
                        floor.ends[topic.log.log_id] = mover.move(topic, max(mover.end(topic), start - 40))
                if turn % 20 == 0:
                    storage.maintain()
                if turn == 20:
                    self.ready.set()
                if self._stop.wait(0.1):
                    break
            self.ends = {number: topic.stats().end for number, topic in enumerate(topics)}
            self.removed = min(topic.log.first_offset for topic in topics)


def kill_rounds(folder: Path, session: SparkSession, rounds: int, seed: int) -> None:
    rng = random.Random(seed)
    data, sink = folder / "data", folder / "sink"
    wal = frazil.WalSettings(max_file_size=64 * 1024, retention=frazil.RetentionSettings(bytes=1))
    publisher = Publisher(frazil.Settings(data=data, wal=wal))
    with publisher:
        for _ in range(rounds):
            with child(data, sink) as running:
                assert running.stdout is not None
                for _ in range(rng.randint(1, 3)):
                    assert running.stdout.readline(), "the query ended by itself"
                threading.Event().wait(rng.uniform(0, 0.5))  # anywhere within a batch
                running.kill()
    if publisher.error is not None:
        raise publisher.error
    assert publisher.removed > 0
    drained = start_query(session, data, sink)
    drained.processAllAvailable()
    drained.stop()
    every_offset_is_in_the_sink_once(sink, publisher.ends)


def every_offset_is_in_the_sink_once(sink: Path, ends: dict[int, int]) -> None:
    """By what the sink has committed: a killed batch leaves files that Spark does not count."""
    log = sink / "rows" / "_spark_metadata"
    files = {Path(line.split('"path":"')[1].split('"')[0].removeprefix("file://")) for line in committed(log)}
    rows = [row for path in files for row in pq.ParquetFile(path).read().to_pylist()]
    found = Counter((row["partition"], row["offset"]) for row in rows)
    expected = {(number, offset) for number, end in ends.items() for offset in range(end)}
    assert not {place for place, count in found.items() if count > 1}
    assert set(found) == expected
    assert all(row["value"].strip() == f"{row['partition']}:{row['offset']}" for row in rows)


def committed(log: Path) -> Iterator[str]:
    """The lines of each batch; the compacted file stands for those before it."""
    compact = max((int(path.name.split(".")[0]) for path in log.glob("*.compact")), default=-1)
    for path in log.iterdir():
        number = path.name.split(".")[0]
        if not number.isdecimal():
            continue  # checksums of Hadoop's own
        is_compact = path.name.endswith(".compact")
        if int(number) > compact or (is_compact and int(number) == compact):
            yield from (line for line in path.read_text(encoding="utf-8").splitlines() if '"path":"' in line)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_killed_stream_has_every_offset_once(tmp_path: Path, session: SparkSession) -> None:
    kill_rounds(tmp_path, session, 1, seed=1)


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_a_stream_killed_ten_times_has_every_offset_once(tmp_path: Path, session: SparkSession) -> None:
    kill_rounds(tmp_path, session, 10, seed=2)
