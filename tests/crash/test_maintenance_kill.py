"""The mover keeps its tables while it moves; its maintenance is killed at random moments, and no row is harmed."""

from __future__ import annotations

import random
import subprocess
import threading
from pathlib import Path

import psutil
import pytest

import frazil
from frazil.core.disk import LocalDisk
from frazil.core.names import TopicName
from frazil.lake.catalogs.opening import open_catalog
from frazil.lake.read.history import TableHistories
from frazil.log.info import logs_from_files
from frazil.node.tiers.logs import FileView
from frazil.node.verify.verify import verify
from parts.movers import (
    TABLE,
    TOPIC,
    Place,
    assert_every_row_once,
    make_place,
    moved,
    payload,
    process,
    publishing,
    run,
    told,
    wait_until,
)
from parts.moving import HandMover
from parts.processes import part


def maintenance_of(mover: subprocess.Popen[bytes]) -> psutil.Process | None:
    for child in psutil.Process(mover.pid).children():
        try:
            if "maintain" in child.cmdline():
                return child
        except psutil.NoSuchProcess:
            continue
    return None


def state(place: Place) -> str:
    return str((told(place).get("maintenance") or {}).get("state"))


def replaced(place: Place) -> int:
    """How many snapshots were made by a compaction."""
    snapshots = open_catalog(place.settings).load_table(TABLE).snapshots()
    return sum(one.summary is not None and one.summary.operation.value == "replace" for one in snapshots)


def kill_rounds(folder: Path, rounds: int) -> None:
    rng = random.Random(rounds)
    rules = {"interval_seconds": 1, "files_min": 2, "jars": str(part("iceberg"))}
    place = make_place(folder / "data", folder / "lake", maintenance=rules)
    with publishing(place) as publisher, process(place, folder / "mover.log", "pipeline", "run") as mover:
        wait_until(lambda: state(place) == "done" and replaced(place) > 0, mover)
        for _ in range(rounds):
            wait_until(lambda: maintenance_of(mover) is not None, mover)
            victim = maintenance_of(mover)
            assert victim is not None
            threading.Event().wait(rng.uniform(0, 12))  # from its start to behind its commits
            victim.kill()
            wait_until(lambda: state(place) in ("failed", "done"), mover)
        before = replaced(place)
        wait_until(lambda: state(place) == "done" and replaced(place) > before, mover)
        count = publisher.end()
        wait_until(lambda: moved(place) == count, mover)
        mover.terminate()
        assert mover.wait(60) == 0
        assert maintenance_of_nobody(folder)
    assert_every_row_once(place, count)
    check_proof(place)
    status = run(place, "pipeline", "status")
    assert "maintenance: last at 20" in status.stdout, status.stdout


def check_proof(place: Place) -> None:
    (info,) = logs_from_files(LocalDisk(), place.settings.log_folder)[0]
    history = TableHistories(place.settings).of(TopicName.parse(TOPIC), info.log_id)
    proof = verify(lambda: info, FileView(place.settings).read, history, lambda _: None)
    assert proof.proven, proof.problems


def maintenance_of_nobody(folder: Path) -> bool:
    """Whether no process is left that keeps the tables of this folder."""
    lines = [one.info["cmdline"] or [] for one in psutil.process_iter(["cmdline"])]
    return not any("maintain" in line and str(folder / "data") in line for line in lines)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_killed_maintenance_harms_no_row(tmp_path: Path) -> None:
    """By hand: rows are moved before it, while it runs and after it; the next one does what it left undone."""
    rules = {"interval_seconds": 1, "files_min": 2, "jars": str(part("iceberg"))}
    place, count = make_place(tmp_path / "data", tmp_path / "lake", maintenance=rules), 0
    with frazil.open(place.settings) as storage:
        topic, mover = storage.topic(TOPIC), HandMover(place.settings)

        def move() -> None:
            nonlocal count
            topic.publish_many([payload(number) for number in range(count, count + 50)])
            count += 50
            assert mover.move(topic) == count

        for _ in range(4):
            move()
        log = tmp_path / "maintain.log"
        with process(place, log, "table", "maintain", "--progress-json") as killed:
            wait_until(lambda: has_spark(killed), killed)
            threading.Event().wait(random.Random().uniform(0, 6))  # from the start of Spark to behind its commits
            killed.kill()
        move()
        done = run(place, "table", "maintain")
        assert done.returncode == 0, done.stderr
        move()
        assert replaced(place) > 0
    assert_every_row_once(place, count)
    check_proof(place)


def has_spark(process: subprocess.Popen[bytes]) -> bool:
    return any(child.name() == "java" for child in psutil.Process(process.pid).children(recursive=True))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_maintenance_of_the_mover_that_is_killed_harms_no_row(tmp_path: Path) -> None:
    kill_rounds(tmp_path, rounds=1)


@pytest.mark.long
@pytest.mark.timeout(3_000)
def test_a_maintenance_killed_many_times_harms_no_row(tmp_path: Path) -> None:
    kill_rounds(tmp_path, rounds=15)
