"""Two movers by mistake, without a lease: the table itself lets each row in once."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mover_child import TOPICS
from test_mover_kill import every_row_is_in_its_table_once, kill_all

import frazil
from frazil.core.names import TopicName
from frazil.lake.catalogs.opening import open_catalog
from frazil.lake.tables.schema import table_of

CHILD = Path(__file__).with_name("two_movers_child.py")


def start(errors: Path, *words: object) -> subprocess.Popen[str]:
    with errors.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, str(CHILD), *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            start_new_session=True,
        )


def told(child: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert child.stdout is not None
    for line in child.stdout:
        yield json.loads(line)


def two_movers(folder: Path, ticks: int) -> None:
    data, stop_at = folder / "data", 2
    owner = start(folder / "owner.log", data, "own", 0)
    children = [owner]
    try:
        of_owner = told(owner)
        address = next(of_owner)["address"]
        guest = start(folder / "guest.log", data, address, ticks, stop_at)
        children.append(guest)
        of_guest = told(guest)
        before = list(itertools.takewhile(lambda line: "stopping" not in line, of_guest))
        assert len(before) >= stop_at
        stopped_s, passed = time.monotonic(), []
        for tick in of_owner:  # what it had told before, and a move since
            passed.append(tick)
            if tick["began_s"] > stopped_s and tick["rows"]:
                break
        os.kill(guest.pid, signal.SIGCONT)
        after = list(of_guest)
        assert guest.wait(60) == 0, (folder / "guest.log").read_text()[-2000:]
        out, _ = owner.communicate(timeout=90)
        assert owner.returncode == 0, (folder / "owner.log").read_text()[-2000:]
    finally:
        for child in children:
            kill_all(child)
            if child.stdin is not None:
                child.stdin.close()
    assert (after[0]["tick"], after[0]["errors"]) == (
        len(before),
        [],
    )  # what the other moved is refused without an error
    assert all(not tick["errors"] for tick in [*before, *passed, *after])
    assert sum(tick["rows"] for tick in after) > 0
    ends = json.loads(out.splitlines()[-1])["ends"]
    assert every_row_is_in_its_table_once(data, ends) == sum(ends.values())
    nothing_is_left_over(data)


def nothing_is_left_over(data: Path) -> None:
    """Every refusal was certain, so the data files and manifests of refused tries are gone."""
    catalog = open_catalog(frazil.Settings(data=data))
    for name in {table_of(TopicName.parse(topic))[0] for topic in TOPICS}:
        table = catalog.load_table(name.identifier)
        folder = Path(table.location().removeprefix("file://"))
        planned = {Path(task.file.file_path.removeprefix("file://")) for task in table.scan().plan_files()}
        assert set(folder.rglob("*.parquet")) == planned
        used = {snapshot.manifest_list for snapshot in table.snapshots()}
        used |= {each.manifest_path for snapshot in table.snapshots() for each in snapshot.manifests(table.io)}
        assert {f"file://{path}" for path in folder.rglob("*.avro")} == used


@pytest.mark.timeout(300)
def test_two_movers_at_once_move_each_row_once(tmp_path: Path) -> None:
    two_movers(tmp_path, ticks=8)


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_two_movers_at_once_move_each_row_once_over_many_ticks(tmp_path: Path) -> None:
    two_movers(tmp_path, ticks=50)
