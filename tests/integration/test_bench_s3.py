"""`bench/lake.py --s3` runs against the real servers, and prints each figure beside its peer of the same run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from parts.jvm import ROOT


def measured(folder: Path, *parts: str) -> list[dict[str, Any]]:
    command = [sys.executable, str(ROOT / "bench" / "lake.py"), "--s3", "--json", "--share", "2000", *parts]
    environment = {**os.environ, "FRAZIL_BENCH_FOLDER": str(folder), "FRAZIL_BENCH_LOUD": "1"}
    answer = subprocess.run(command, capture_output=True, env=environment, text=True, check=False)
    assert answer.returncode == 0, answer.stderr[-4_000:]
    found: list[dict[str, Any]] = json.loads(answer.stdout)
    return found


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_cold_read_is_measured_beside_bare_reads_of_the_same_objects(tmp_path: Path) -> None:
    decoded, as_bytes = measured(tmp_path, "cold")
    assert (decoded["wanted"], as_bytes["wanted"]) == ("≥ 0.7", "-")
    assert decoded["met"] == (decoded["ratio"] >= 0.7)
    assert decoded["name"].startswith("cold read from S3, 1,000 messages of 210 B in 1 objects")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_moving_is_measured_beside_local_files_and_freshness_by_its_goal(tmp_path: Path) -> None:
    moving, fresh = measured(tmp_path, "moving", "freshness")
    assert moving["name"].startswith("moving 1,000 messages")
    assert (moving["met"], fresh["met"]) == (moving["ratio"] >= 0.7, fresh["ratio"] <= 1)
    assert fresh["limit"] == "1.5 s"
