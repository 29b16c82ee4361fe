"""Movers that are killed or stopped while they lead, and executors killed at random moments: every row once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import threading
from pathlib import Path

import psutil
import pytest

from parts.movers import (
    DEADLINE_SECONDS,
    Place,
    Publisher,
    assert_every_row_once,
    make_place,
    moved,
    process,
    publishing,
    run,
    told,
    wait_until,
)
from parts.spark import SparkCluster

CALM = {"flush_interval_ms": 800}
"""Ticks without a pause between them would take the processor from the movers that start and stand by."""


def leads(place: Place, mover: subprocess.Popen[bytes]) -> bool:
    return told(place).get("pid") == mover.pid


def goes_on(place: Place, *movers: subprocess.Popen[bytes]) -> None:
    """Rows reach the table that it did not have a moment ago."""
    before = moved(place)
    wait_until(lambda: moved(place) > before, *movers)


def drained(place: Place, publisher: Publisher, *movers: subprocess.Popen[bytes]) -> int:
    count = publisher.end()
    wait_until(lambda: moved(place) == count, *movers)
    return count


@pytest.mark.timeout(600)
def test_one_mover_leads_and_another_takes_over_when_it_is_killed_stopped_or_ended(
    connect: str, tmp_path: Path
) -> None:
    place = make_place(tmp_path / "data", tmp_path / "lake", writer=CALM)
    arguments = ("pipeline", "run", "--remote", connect)
    logs = [tmp_path / f"mover-{number}.log" for number in range(3)]
    with publishing(place) as publisher, process(place, logs[0], *arguments) as first:
        wait_until(lambda: leads(place, first), first)
        with process(place, logs[1], *arguments) as second, process(place, logs[2], *arguments) as third:
            wait_until(lambda: all("standby" in log.read_text() for log in logs[1:]), first, second, third)
            refused = run(place, "pipeline", "run", "--once", "--json", "--remote", connect)
            assert refused.returncode == 4
            assert json.loads(refused.stderr.splitlines()[-1])["error"] == "another_leads"
            goes_on(place, first, second, third)

            first.send_signal(signal.SIGKILL)
            wait_until(lambda: leads(place, second) or leads(place, third), second, third)
            leader, other = (second, third) if leads(place, second) else (third, second)
            goes_on(place, second, third)

            leader.send_signal(signal.SIGSTOP)
            wait_until(lambda: leads(place, other), second, third)
            goes_on(place, second, third)
            leader.send_signal(signal.SIGCONT)
            log = logs[1] if leader is second else logs[2]
            woken = f"standby: the mover with process {other.pid} on "
            wait_until(lambda: woken in log.read_text(), second, third)
            goes_on(place, second, third)
            assert leads(place, other)

            other.send_signal(signal.SIGTERM)
            assert other.wait(30) == 0
            wait_until(lambda: leads(place, leader), leader)
            count = drained(place, publisher, leader)
    assert all(log.read_text().count("Traceback") == 0 for log in logs)
    assert_every_row_once(place, count)


def kill_executors(spark_hosts: SparkCluster, folder: Path, rounds: int) -> None:
    place = make_place(spark_hosts.hidden / folder.name, folder / "lake")
    rng = random.Random(rounds)
    killed: set[int] = set()
    with (
        publishing(place) as publisher,
        process(place, folder / "mover.log", "pipeline", "run", "--master", spark_hosts.master) as mover,
    ):
        for _ in range(rounds):
            goes_on(place, mover)
            threading.Event().wait(rng.uniform(0, 0.6))  # anywhere within a tick: plan, job, commit
            wait_until(lambda: bool(spark_hosts.executors()), mover)
            victim = rng.choice(spark_hosts.executors())
            victim.kill()
            psutil.wait_procs([victim], timeout=DEADLINE_SECONDS)
            killed.add(victim.pid)
        goes_on(place, mover)
        count = drained(place, publisher, mover)
    assert len(killed) == rounds
    assert_every_row_once(place, count)


@pytest.mark.timeout(600)
def test_no_row_is_lost_or_doubled_when_executors_are_killed(spark_hosts: SparkCluster, tmp_path: Path) -> None:
    kill_executors(spark_hosts, tmp_path, rounds=1)


@pytest.mark.long
@pytest.mark.timeout(3_000)
def test_no_row_is_lost_or_doubled_over_many_killed_executors(spark_hosts: SparkCluster, tmp_path: Path) -> None:
    kill_executors(spark_hosts, tmp_path, rounds=20)
