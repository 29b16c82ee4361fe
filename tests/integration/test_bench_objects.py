"""`bench/objects.py` runs against a real S3 server, and prints each figure beside the store's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_object_tier_is_measured_beside_its_store(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "bench" / "objects.py"), "--share", "500"]
    environment = {**os.environ, "FRAZIL_BENCH_FOLDER": str(tmp_path)}
    answer = subprocess.run(command, capture_output=True, env=environment, text=True, check=False)
    assert answer.returncode == 0, answer.stderr[-4_000:]
    for figure in ("one publisher, p50", "messages of 1 KiB in batches", "upload", "cold read"):
        assert figure in answer.stdout
