"""A person who starts the mover on a terminal sees how far it is with what had piled up."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import threading
from pathlib import Path

import pytest

import frazil
from parts.movers import DEADLINE_SECONDS, TOPIC, command, environment, make_place


@pytest.mark.timeout(600)
def test_a_catch_up_on_a_terminal_shows_a_progress_bar(tmp_path: Path, connect: str) -> None:
    """Small memory makes ticks of 64 MiB: the bar is there after the first."""
    place = make_place(tmp_path / "data", tmp_path / "lake", writer={"max_memory_bytes": 4 * 2**20})
    with frazil.open(place.data) as storage:
        for _ in range(20):
            storage.topic(TOPIC).publish_many([os.urandom(1 << 16) for _ in range(64)])
    ours, theirs = pty.openpty()
    started = subprocess.Popen(
        command(place, "pipeline", "run", "--once", "--remote", connect),
        env={**environment(), "TERM": "xterm", "COLUMNS": "120"}, stdout=subprocess.PIPE, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    seen: list[bytes] = []
    reader = threading.Thread(target=_read, args=(ours, seen), daemon=True)
    reader.start()
    try:
        out, _ = started.communicate(timeout=DEADLINE_SECONDS)
    finally:
        started.kill()
        reader.join(10)
        os.close(ours)
    shown = b"".join(seen).decode(errors="replace")
    assert started.returncode == 0, shown
    assert out.startswith(b"moved 1280 rows in ")
    assert re.search(r"moving.*MiB", shown), shown


def _read(descriptor: int, seen: list[bytes]) -> None:
    with contextlib.suppress(OSError):  # how a terminal says that nobody is left at the other end
        while part := os.read(descriptor, 4096):
            seen.append(part)
