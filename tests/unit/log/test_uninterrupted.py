"""Calls of the main thread are finished in their order, whatever interrupts the wait for them."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from frazil.log.uninterrupted import uninterrupted

INTERRUPTED_THEN_EXIT = """
import os, signal, sys, time
from pathlib import Path
from frazil.log.uninterrupted import uninterrupted

def long_call():
    os.kill(os.getpid(), signal.SIGALRM)
    time.sleep(0.5)
    Path(sys.argv[1]).write_text("finished")

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
try:
    uninterrupted(long_call)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_call_that_was_interrupted_is_finished_before_the_process_ends(tmp_path: Path) -> None:
    path = tmp_path / "written"
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_THEN_EXIT, str(path)], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "interrupted\n"
    assert path.read_text() == "finished"


def test_many_calls_share_a_thread_that_ends_when_none_comes() -> None:
    threads = {uninterrupted(threading.current_thread) for _ in range(100)}
    assert threading.main_thread() not in threads
    assert len(threads) < 20, "one, unless the machine is so busy that a call comes too late for the last one"
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()
    assert uninterrupted(threading.current_thread) not in threads


def test_a_call_is_done_also_where_no_thread_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in what `atexit` calls while Python 3.12 ends: `close` must not fail there."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    uninterrupted(threading.current_thread).join(timeout=30)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    calls: list[threading.Thread] = []
    uninterrupted(lambda: calls.append(threading.current_thread()))
    assert calls == [threading.main_thread()]
    with pytest.raises(ZeroDivisionError):
        uninterrupted(lambda: 1 // 0)
