"""The mover and its JVM killed at random moments: every row is in the table once, whatever was in flight."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from mover_child import EVEN, TOPICS, payload

import frazil
from frazil.core.names import TopicName
from frazil.lake.catalogs.opening import open_catalog
from frazil.lake.tables.schema import table_of

CHILD = Path(__file__).with_name("mover_child.py")


def start(folder: Path, *what: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(CHILD), str(folder), *what],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def kill_round(folder: Path, victim: str, rng: random.Random, *what: str) -> int:
    """Run the child until a random moment behind its first ticks, kill, and return how many ticks it told of."""
    child = start(folder, "publish", *what)
    ticks = 0
    try:
        assert child.stdout is not None
        for _ in range(rng.randint(1, 4)):
            assert child.stdout.readline(), "the child ended by itself"
            ticks += 1
        threading.Event().wait(rng.uniform(0, 0.6))  # anywhere within the next tick: plan, job, commit
        if victim == "mover":
            os.kill(child.pid, signal.SIGKILL)
        else:
            for process in psutil.Process(child.pid).children(recursive=True):
                if process.name() == "java":
                    process.kill()
    finally:
        kill_all(child)
    return ticks


def kill_all(child: subprocess.Popen[str]) -> None:
    """The child, its JVM and its workers: the next round must own the folder alone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait(30)
    if child.stdout is not None:
        child.stdout.close()


def every_row_is_in_its_table_once(folder: Path, ends: dict[str, int]) -> int:
    catalog = open_catalog(frazil.Settings(data=folder))
    total = 0
    for topic in TOPICS:
        name, partition = table_of(TopicName.parse(topic))
        table = catalog.load_table(name.identifier)
        mine = f"_topic_partition = {partition}"
        rows = table.scan(row_filter=mine, selected_fields=("_offset", "_payload")).to_arrow()
        found = sorted(zip(rows["_offset"].to_pylist(), rows["_payload"].to_pylist(), strict=True))
        assert [offset for offset, _ in found] == list(range(ends[topic])), f"{topic} has a gap or a double"
        assert all(value == payload(topic, offset) for offset, value in found), f"{topic} has a wrong row"
        total += len(found)
    return total


def run_rounds(folder: Path, victim: str, rounds: int, *what: str) -> None:
    rng = random.Random(victim)
    ticks = sum(kill_round(folder, victim, rng, *what) for _ in range(rounds))
    drain = start(folder, "drain", "here")
    out, _ = drain.communicate(timeout=120)
    assert drain.returncode == 0
    ends = json.loads(out.splitlines()[-1])
    assert ticks >= rounds
    assert every_row_is_in_its_table_once(folder, ends) == sum(ends.values()) > 1_000


def run_rounds_of_a_statement(folder: Path, spark_address: str, rounds: int) -> None:
    rng = random.Random("statement")
    for _ in range(rounds):
        kill_round(folder, "mover", rng, "statement", spark_address)
    drain = start(folder, "drain", "statement", spark_address)
    out, _ = drain.communicate(timeout=120)
    assert drain.returncode == 0
    end = json.loads(out.splitlines()[-1])[EVEN]
    rows = open_catalog(frazil.Settings(data=folder)).load_table(("crash", "even")).scan().to_arrow()
    found = sorted(zip(rows["_offset"].to_pylist(), rows["_payload"].to_pylist(), strict=True))
    assert end > 200
    assert found == [(offset, payload(EVEN, offset)) for offset in range(0, end, 2)]


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_result_of_a_statement_is_there_once_when_the_mover_is_killed(tmp_path: Path, spark_address: str) -> None:
    run_rounds_of_a_statement(tmp_path, spark_address, rounds=1)


@pytest.mark.long
@pytest.mark.timeout(3_000)
def test_the_result_of_a_statement_is_there_once_over_many_kills(tmp_path: Path, spark_address: str) -> None:
    run_rounds_of_a_statement(tmp_path, spark_address, rounds=20)


@pytest.mark.timeout(400)
def test_no_row_is_lost_or_doubled_when_the_mover_is_killed(tmp_path: Path) -> None:
    """Its tasks run in its own process: what is killed is plan, files and commits."""
    run_rounds(tmp_path, "mover", 4, "here")


@pytest.mark.long
@pytest.mark.timeout(400)
def test_no_row_is_lost_or_doubled_when_the_jvm_is_killed(tmp_path: Path) -> None:
    run_rounds(tmp_path, "jvm", rounds=1)


@pytest.mark.long
@pytest.mark.timeout(3_000)
@pytest.mark.parametrize("victim", ["mover", "jvm"])
def test_no_row_is_lost_or_doubled_over_many_kills(tmp_path: Path, victim: str) -> None:
    run_rounds(tmp_path, victim, rounds=20)
