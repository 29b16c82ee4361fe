"""Damaged bytes never end the process that decodes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHILD = Path(__file__).with_name("fuzz_child.py")


def _fuzz(seed: int, batches: int, timeout_s: float) -> None:
    command = [sys.executable, "-X", "faulthandler", str(CHILD), str(seed), str(batches)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    assert child.returncode == 0, child.stderr[-4000:]
    assert child.stdout == f"{batches} batches\n"


def test_damaged_requests_are_rows_or_errors_in_a_process_that_lives() -> None:
    _fuzz(seed=0, batches=40, timeout_s=100)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_many_damaged_requests_are_rows_or_errors_in_a_process_that_lives() -> None:
    _fuzz(seed=1_000, batches=5_000, timeout_s=850)
