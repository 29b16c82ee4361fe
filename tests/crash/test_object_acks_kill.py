"""A process with a topic of ack level `object` is killed, and loses its files: the store has what was acknowledged."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parts.s3 import s3_server

CHILD = Path(__file__).with_name("object_acks_child.py")
ROUNDS = {"local": 6, "s3": 4}
START = "start"


class Ledger:
    def __init__(self) -> None:
        self.acknowledged: dict[int, str] = {}
        self.rows: dict[int, str] = {}

    def check(self, rows: dict[int, str]) -> None:
        assert list(rows) == list(range(len(rows))), "a gap or a double"
        found = {offset: rows.get(offset) for offset in self.acknowledged}
        assert found == self.acknowledged, "an acknowledged row is lost or wrong"
        before = {offset: rows.get(offset) for offset in self.rows}
        assert before == self.rows, "a row has changed"
        messages = [row for row in rows.values() if row != START]
        assert len(set(messages)) == len(messages), "a row is there twice"
        self.rows = rows


def run_round(settings: dict[str, Any], ledger: Ledger, alive_seconds: float) -> None:
    """Show what is there, publish, and be killed so long after that."""
    process = subprocess.Popen([sys.executable, str(CHILD), json.dumps(settings)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    rows: dict[int, str] = {}
    killer = threading.Timer(alive_seconds, process.send_signal, (signal.SIGKILL,))
    try:
        for line in process.stdout:
            words = line.split()
            if words[0] == "row":
                assert int(words[1]) not in rows
                rows[int(words[1])] = words[2]
            elif words[0] == "shown":
                ledger.check(rows)
                killer.start()
            elif words[0] == "ack" and len(words) == 3 and line.endswith("\n"):
                assert int(words[1]) not in ledger.acknowledged, "an offset was given twice"
                ledger.acknowledged[int(words[1])] = words[2]
            else:
                assert not line.endswith("\n"), f"the process says: {line}"  # otherwise it was killed while it wrote
        assert process.wait(30) == -signal.SIGKILL
        assert rows
    finally:
        killer.cancel()
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    if request.param == "local":
        yield {"type": "local", "path": str(tmp_path / "store")}
        return
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder, s3_server(Path(folder)) as s3:
        yield s3.settings(s3.make_bucket("orders"))


@pytest.mark.timeout(300)
def test_a_killed_process_loses_no_row_that_the_object_store_acknowledged(
    tmp_path: Path, store: dict[str, Any]
) -> None:
    rng = random.Random(17)
    settings = {
        "data": str(tmp_path / "data"),
        "wal": {"max_file_size": 64 * 1024},
        "objects": {"enabled": True, "store": store, "gather_ms": 2},
    }
    ledger = Ledger()
    for number in range(ROUNDS[store["type"]]):
        run_round(settings, ledger, rng.uniform(0.1, 0.8))
        if number % 3 == 1:  # what a power cut may leave of files that are never synced
            for segment in sorted((tmp_path / "data/log/shop/orders").glob("*.wal"))[-1:]:
                with open(segment, "r+b") as file:
                    file.truncate(rng.randrange(segment.stat().st_size // 2, segment.stat().st_size))
    run_round(settings, ledger, 0.1)
    assert len(ledger.acknowledged) > 100
