"""The stock Danube client in Rust against a real server: another implementation of the same protocol."""

from __future__ import annotations

import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Self

import pytest

from parts.danube import WAIT_SECONDS, Server
from parts.processes import PARTS, part, pause

HAS_CLIENT = (PARTS / "danube-rust").exists()
pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(not HAS_CLIENT, reason="the client could not be built here; `make parts` says why"),
]

WINDOW = 1_000
KEYS = ["tea", "milk", "rice", "salt"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    # A consumer with its share of the window in flight is passed over. The window holds all messages of a test, so that
    # shares are equal however slow one of the consumers is.
    made = Server(tmp_path / "server", max_unacked_messages=WINDOW)
    made.start()
    yield made
    made.kill()


class Receiver:
    """A consumer that is subscribed when the constructor returns, and goes on until the end of the `with`."""

    def __init__(self, server: Server, *given: str) -> None:
        command = [str(part("danube-rust")), "receive", server.url, *given]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "subscribed\n", self._process.communicate()[1]
        self.lines: list[list[str]] = []
        self._reading = threading.Thread(target=self._read, args=(self._process.stdout,))
        self._reading.start()

    def _read(self, stdout: IO[str]) -> None:
        for line in stdout:
            if line != "subscribed\n":
                self.lines.append(line.rstrip("\n").split(" "))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._reading.join()
        self._process.stdout.close()
        self._process.stderr.close()


def wait_for(count: int, *receivers: Receiver) -> None:
    give_up = time.monotonic() + WAIT_SECONDS
    while sum(len(one.lines) for one in receivers) < count:
        assert time.monotonic() < give_up, [one.lines for one in receivers]
        pause(0.01)


def call(server: Server, *given: str) -> list[str]:
    command = [str(part("danube-rust")), given[0], server.url, *given[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_it_sends_and_receives_with_every_kind_of_subscription(server: Server) -> None:
    topic = "/default/orders"
    call(server, "send", topic, "first", "0", "0")
    with (
        Receiver(server, topic, "alone", "exclusive", "a") as alone,
        Receiver(server, topic, "active", "failover", "a") as active,
        Receiver(server, topic, "active", "failover", "b") as standby,
        Receiver(server, topic, "shared", "shared", "a") as left,
        Receiver(server, topic, "shared", "shared", "b") as right,
        Receiver(server, topic, "keyed", "key_shared", "a") as one,
        Receiver(server, topic, "keyed", "key_shared", "b") as other,
    ):
        assert call(server, "send", topic, "second", "0", "80", *KEYS) == [str(number) for number in range(80)]
        for receivers in ([alone], [active, standby], [left, right], [one, other]):
            wait_for(80, *receivers)
    in_order = [[topic, str(number), KEYS[number % 4], str(number), str(number)] for number in range(80)]
    assert alone.lines == in_order
    assert sorted([active.lines, standby.lines]) == [[], in_order]
    assert sorted(numbers(left) + numbers(right)) == list(range(80))
    assert len(left.lines) == len(right.lines) == 40, "equal shares"
    assert sorted(numbers(one) + numbers(other)) == list(range(80))
    for key in KEYS:
        mine = [[int(line[3]) for line in each.lines if line[2] == key] for each in (one, other)]
        assert sorted(map(len, mine)) == [0, 20], "a key stays with one consumer"
        assert all(each == sorted(each) for each in mine)


def test_what_is_refused_comes_again(server: Server) -> None:
    call(server, "send", "/default/again", "first", "0", "0")
    with Receiver(server, "/default/again", "s", "exclusive", "c", "refusing") as receiver:
        call(server, "send", "/default/again", "second", "0", "3")
        wait_for(6, receiver)
    assert sorted(line[1] for line in receiver.lines if line[0] == "refused") == ["0", "1", "2"]
    assert sorted(line[1] for line in receiver.lines if line[0] != "refused") == ["0", "1", "2"]


def test_partitions(server: Server) -> None:
    call(server, "send", "/default/split", "first", "3", "0")
    with Receiver(server, "/default/split", "s", "exclusive", "c") as receiver:
        call(server, "send", "/default/split", "second", "3", "30")
        wait_for(30, receiver)
    assert Counter(line[0] for line in receiver.lines) == {f"/default/split-part-{at}": 10 for at in range(3)}
    assert sorted(numbers(receiver)) == list(range(30))


def test_schemas(server: Server) -> None:
    definition = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'
    told = call(server, "schema", "orders-value", "/default/typed", definition, '{"n": 1}', '{"n": 2}')
    assert told[0].startswith("registered ")
    assert told[1:] == ["sent", "sent"]


def test_nothing_acknowledged_is_lost_when_the_server_is_killed(server: Server) -> None:
    topic, count = "/default/kept", 1_000
    call(server, "send", topic, "first", "0", "0")
    with Receiver(server, topic, "s", "exclusive", "c") as receiver:
        acked: list[str] = []
        sending = threading.Thread(target=lambda: acked.extend(call(server, "send", topic, "p", "0", str(count))))
        sending.start()
        wait_for(50, receiver)
        server.kill()
        server.start()
        sending.join()
        assert acked == [str(number) for number in range(count)]
        give_up = time.monotonic() + WAIT_SECONDS
        while set(numbers(receiver)) != set(range(count)):
            assert time.monotonic() < give_up, "each that was acknowledged arrives"
            pause(0.05)
    offsets = [int(line[1]) for line in receiver.lines]
    first_seen = list(dict.fromkeys(offsets))
    assert first_seen == sorted(first_seen), "what comes again is older than what is new"


def numbers(receiver: Receiver) -> list[int]:
    return [int(line[3]) for line in list(receiver.lines)]
