"""Real processes, killed while their producers number what they send: each row is there exactly once."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from numbered_child import batch_of
from test_sigkill import Publishers

PRODUCERS = ("p", "q", "r")


@pytest.fixture
def publishers() -> Iterator[Publishers]:
    made = Publishers(Path(__file__).with_name("numbered_child.py"))
    yield made
    made.close()


class Clients:
    """What the clients know: their epochs, and where each acknowledged batch is."""

    def __init__(self) -> None:
        self.epochs = dict.fromkeys(PRODUCERS, -1)
        self.places: dict[tuple[str, int], int] = {}
        self.known = dict.fromkeys(PRODUCERS, 0)
        """The first number that was not acknowledged."""

    def start(self, *, anew: bool) -> str:
        return ",".join(f"{name}:{-1 if anew else self.epochs[name]}:{self.known[name]}" for name in PRODUCERS)

    def hear(self, words: list[str]) -> None:
        assert words[0] in ("ack", "state"), f"the process says: {words}"
        producer, first, second = words[1], int(words[2]), int(words[3])
        if words[0] == "state":
            assert first >= self.epochs[producer], "an epoch was given back"
            assert second >= self.known[producer], "acknowledged rows are forgotten"
            self.epochs[producer] = first
            return
        assert self.places.setdefault((producer, first), second) == second, f"{producer} {first} is in two places"
        assert int(words[4]) == len(batch_of(producer, first))
        if first == self.known[producer]:
            self.known[producer] = first + int(words[4])
        assert first < self.known[producer], "an answer out of turn"


def run_round(
    publishers: Publishers, clients: Clients, folder: Path, sync_mode: str, alive_ms: int, *, anew: bool
) -> None:
    publishers.start("publish", folder, sync_mode, clients.start(anew=anew))
    pid, deadline = 0, None
    while (words := publishers.line()) != ["end"]:
        if words[0] == "pid":
            pid = int(words[1])
        else:
            clients.hear(words)
        if deadline is None and pid and words[0] == "ack":
            deadline = time.monotonic() + alive_ms / 1_000
            for more in publishers.lines_until(deadline):
                clients.hear(more)
            os.kill(pid, signal.SIGKILL)
    assert deadline is not None


def check_all(publishers: Publishers, clients: Clients, folder: Path) -> int:
    """Every row once, in the order of its producer, and where its client was told."""
    publishers.start("show", folder, "always", "-")
    following = dict.fromkeys(PRODUCERS, 0)
    offsets: dict[tuple[str, int], int] = {}
    while (words := publishers.line()) != ["end"]:
        if words[0] == "pid":
            continue
        assert words[0] == "row", f"the process says: {words}"
        offset, producer, number = int(words[1]), words[2], int(words[3])
        assert offset == len(offsets)
        assert number == following[producer], f"{producer}: {number} where {following[producer]} belongs"
        following[producer] += 1
        offsets[producer, number] = offset
    assert {place: offsets[place] for place in clients.places} == clients.places
    assert all(following[producer] >= clients.known[producer] for producer in PRODUCERS)
    return len(offsets)


def kill_rounds(publishers: Publishers, folder: Path, rounds: int) -> None:
    rng = random.Random(os.urandom(16))
    clients = Clients()
    for number in range(rounds):
        sync_mode = ("always", "always", "periodic", "none")[number % 4]
        try:
            run_round(publishers, clients, folder, sync_mode, rng.randrange(10, 150), anew=number % 2 == 0)
        except AssertionError as error:
            error.add_note(f"round {number}, sync mode {sync_mode}")
            raise
    assert check_all(publishers, clients, folder) > 10 * rounds
    assert len(list((folder / "log/crash/numbered").glob("*.wal"))) > rounds, "rotation was not met"


def test_every_numbered_row_is_there_once_after_twenty_kills(publishers: Publishers, tmp_path: Path) -> None:
    kill_rounds(publishers, tmp_path / "data", 20)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_every_numbered_row_is_there_once_after_five_hundred_kills(publishers: Publishers, tmp_path: Path) -> None:
    kill_rounds(publishers, tmp_path / "data", 500)
