"""Real processes on the real disk, killed while they publish: what was acknowledged is there, once, in order."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PUBLISHER = Path(__file__).with_name("publisher.py")
IN_FLIGHT_MAX = {"threads": 3 + 3, "tasks": 16}
"""Messages that may be stored though nobody was told: one call for each publisher, one of them with three messages."""


class Publishers:
    """The process that starts a fresh one for each round."""

    def __init__(self, script: Path = PUBLISHER) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._commands = self._process.stdin
        self._lines = self._process.stdout
        self._left = b""
        assert self.line() == ["ready"]

    def start(self, what: str, folder: Path, sync_mode: str, start: int | str) -> None:
        self._commands.write(f"{what} {sync_mode} {start} {folder}\n".encode())

    def line(self) -> list[str]:
        """The next line, waited for."""
        while b"\n" not in self._left:
            self._read()
        return self._take()

    def lines_until(self, deadline: float) -> Iterator[list[str]]:
        """Lines as they come, until a time of the monotonic clock."""
        while (left := deadline - time.monotonic()) > 0:
            while b"\n" in self._left:
                yield self._take()
            if select.select([self._lines], [], [], left)[0]:
                self._read()

    def close(self) -> None:
        self._commands.close()
        self._process.wait()
        self._lines.close()

    def _read(self) -> None:
        data = os.read(self._lines.fileno(), 1 << 20)
        assert data, "the publishers ended"
        self._left += data

    def _take(self) -> list[str]:
        line, _, self._left = self._left.partition(b"\n")
        return line.decode().split(" ")


@pytest.fixture
def publishers() -> Iterator[Publishers]:
    made = Publishers()
    yield made
    made.close()


class Ledger:
    """What was acknowledged, against what is found."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, str] = {}
        self.found: dict[int, str] = {}
        self.checked_to = 0
        self.in_flight_max = 0

    def acknowledge(self, offset: int, digest: str) -> None:
        assert offset not in self.acknowledged, f"offset {offset} was given twice"
        assert offset >= self.checked_to, f"offset {offset} was given again after a restart"
        self.acknowledged[offset] = digest

    def check(self, rows: list[tuple[int, str]]) -> None:
        """`rows` is everything from `checked_to` on."""
        offsets = [offset for offset, _ in rows]
        assert offsets == list(range(self.checked_to, self.checked_to + len(rows))), "a gap or a double"
        found = dict(rows)
        new = {offset: digest for offset, digest in self.acknowledged.items() if offset >= self.checked_to}
        assert {offset: found.get(offset) for offset in new} == new, "an acknowledged message is lost or wrong"
        untold = len(found) - len(new)
        assert untold <= self.in_flight_max, f"{untold} messages are there that nobody can have published"
        self.found |= found
        assert len(set(self.found.values())) == len(self.found), "a message is there twice"
        self.checked_to += len(rows)


def read_state(publishers: Publishers, ledger: Ledger) -> int:
    """What the process shows before it goes on; returns its pid."""
    pid, rows = 0, []
    while (words := publishers.line())[0] != "shown":
        if words[0] == "pid":
            pid = int(words[1])
        elif words[0] == "row":
            rows.append((int(words[1]), words[2]))
        else:
            assert words in (["first", "0"], ["opening"]), f"the process says: {words}"
    ledger.check(rows)
    return pid


def run_round(publishers: Publishers, ledger: Ledger, folder: Path, what: str, sync_mode: str, alive_ms: int) -> None:
    """Show what is there, publish, and be killed so long after the first acknowledgement."""
    publishers.start(what, folder, sync_mode, ledger.checked_to)
    pid = read_state(publishers, ledger)
    ledger.in_flight_max = IN_FLIGHT_MAX[what]
    deadline: float | None = None
    killed = False
    while True:
        words = publishers.line()
        if words[0] == "end":
            assert killed
            return
        if words[0] == "pid":
            pid = int(words[1])
            continue
        assert words[0] == "ack", f"the process says: {words}"
        ledger.acknowledge(int(words[1]), words[2])
        if deadline is None:
            deadline = time.monotonic() + alive_ms / 1_000
            for more in publishers.lines_until(deadline):
                if more[0] == "pid":
                    pid = int(more[1])
                else:
                    assert more[0] == "ack", f"the process says: {more}"
                    ledger.acknowledge(int(more[1]), more[2])
            assert pid
            os.kill(pid, signal.SIGKILL)
            killed = True


def check_all(publishers: Publishers, ledger: Ledger, folder: Path) -> None:
    """A fresh process reads everything from the beginning."""
    seen = Ledger()
    seen.acknowledged = ledger.acknowledged
    seen.in_flight_max = sys.maxsize
    publishers.start("reopen", folder, "always", 0)
    read_state(publishers, seen)
    assert {offset: seen.found[offset] for offset in ledger.found} == ledger.found
    while publishers.line()[0] != "end":
        pass


def kill_rounds(publishers: Publishers, folder: Path, rounds: int) -> None:
    rng = random.Random(os.urandom(16))
    ledger = Ledger()
    for number in range(rounds):
        what = "threads" if number % 2 == 0 else "tasks"
        sync_mode = ("always", "always", "always", "periodic", "none")[number % 5]
        try:
            run_round(publishers, ledger, folder, what, sync_mode, rng.randrange(20, 300))
        except AssertionError as error:
            error.add_note(f"round {number}: {what}, sync mode {sync_mode}")
            raise
    check_all(publishers, ledger, folder)
    assert len(ledger.acknowledged) > 10 * rounds
    assert len(list((folder / "log/crash/messages").glob("*.wal"))) > rounds, "rotation was not met"


def test_every_acknowledged_message_survives_twenty_kills(publishers: Publishers, tmp_path: Path) -> None:
    kill_rounds(publishers, tmp_path / "data", 20)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_every_acknowledged_message_survives_five_hundred_kills(publishers: Publishers, tmp_path: Path) -> None:
    kill_rounds(publishers, tmp_path / "data", 500)


def test_a_process_killed_while_it_recovers_loses_nothing(publishers: Publishers, tmp_path: Path) -> None:
    rng = random.Random(os.urandom(16))
    folder = tmp_path / "data"
    ledger = Ledger()
    killed_in_time = 0
    for _ in range(15):
        run_round(publishers, ledger, folder, "threads", "always", 30)
        with open(sorted((folder / "log/crash/messages").glob("*.wal"))[-1], "ab") as segment:
            segment.write(os.urandom(5_000))  # a torn tail, so that recovery has something to keep aside and cut
        publishers.start("reopen", folder, "always", ledger.checked_to)
        lines = [publishers.line(), publishers.line()]
        (pid,) = (int(words[1]) for words in lines if words[0] == "pid")
        if ["opening"] in lines:
            list(publishers.lines_until(time.monotonic() + rng.uniform(0, 0.004)))
        with contextlib.suppress(ProcessLookupError):  # it was quicker
            os.kill(pid, signal.SIGKILL)
        words = publishers.line()
        killed_in_time += words == ["end"]
        while words != ["end"]:
            words = publishers.line()
    check_all(publishers, ledger, folder)
    assert killed_in_time > 0
