"""Connections cut at every point of a publish, and the server killed under load: what was acknowledged is there, in its
place, and nothing is there twice."""

from __future__ import annotations

import contextlib
import random
import threading
from pathlib import Path

import pytest

import frazil
from frazil.core.settings import FlightSettings
from frazil.doors.flight.door import flight_door
from parts.cut_proxy import CutProxy, cut_proxy
from parts.danube import Server
from parts.processes import pause

TOPIC = "/default/orders"
SECONDS_MAX = 60.0


class Publisher(threading.Thread):
    """Publishes until told to stop, one message or several at a time, and remembers what was answered."""

    def __init__(self, topic: frazil.RemoteTopic, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._topic = topic
        self._ending = threading.Event()
        self.acked: dict[int, bytes] = {}
        self.sent = 0
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._ending.is_set():
                count = 1 + self.sent % 3
                payloads = [f"{self.name} {self.sent + number}".encode() for number in range(count)]
                self.sent += count
                if count == 1:
                    self.acked[self._topic.publish(payloads[0])] = payloads[0]
                else:
                    self.acked.update(zip(self._topic.publish_many(payloads), payloads, strict=True))
        except BaseException as error:
            self.failed = error
            raise

    def stop(self) -> None:
        self._ending.set()
        self.join(SECONDS_MAX)
        assert not self.is_alive()


def await_answers(publishers: list[Publisher], count: int) -> None:
    """Until they have had so many answers."""
    for _ in range(int(SECONDS_MAX / 0.01)):
        assert not any(one.failed for one in publishers)
        if sum(len(one.acked) for one in publishers) >= count:
            return
        pause(0.01)
    raise AssertionError("no more answers come")


def check(stored: dict[int, bytes], publishers: list[Publisher]) -> None:
    for one in publishers:
        assert one.failed is None
        assert {offset: stored.get(offset) for offset in one.acked} == one.acked
        mine = [payload for _, payload in sorted(stored.items()) if payload.startswith(f"{one.name} ".encode())]
        assert mine == [f"{one.name} {number}".encode() for number in range(one.sent)], "in order, each once"
    assert len(stored) == sum(one.sent for one in publishers)


def contents(topic: frazil.Topic) -> dict[int, bytes]:
    return {message.offset: message.payload for message in topic.read()}


def publish_through(proxy: CutProxy, name: str, cut: tuple[str, int] | None = None) -> dict[int, bytes]:
    """A new stream, a lone message, and a batch behind it. If that took fewer bytes than those after which the
    connection is to be cut, more messages follow until it is."""
    acked: dict[int, bytes] = {}
    with frazil.connect(proxy.address, give_up_ms=60_000) as remote:
        topic = remote.topic(TOPIC)
        before = dict(proxy.passed)
        if cut is not None:
            proxy.cut_after(*cut)
        acked[topic.publish(f"{name} 0")] = f"{name} 0".encode()
        payloads = [f"{name} {number}" for number in (1, 2)]
        acked |= zip(topic.publish_many(payloads), (one.encode() for one in payloads), strict=True)
        proxy.used = {what: proxy.passed[what] - before[what] for what in before}
        for number in range(3, 3 + (0 if cut is None else cut[1])):  # each takes a byte at least
            if proxy.was_cut.is_set():
                break
            acked[topic.publish(f"{name} {number}")] = f"{name} {number}".encode()
    return acked


def cut_everywhere(folder: Path, step: int) -> int:
    with (
        frazil.open(folder) as owner,
        flight_door(owner, FlightSettings(port=0)) as door,
        cut_proxy(door.port) as proxy,
    ):
        acked = publish_through(proxy, "to know the bytes")
        plan = [(what, count) for what, size in proxy.used.items() for count in range(1, size, step)]
        for number, cut in enumerate(plan, 1):
            acked |= publish_through(proxy, f"round {number}", cut)
            assert proxy.cuts == number
        stored = contents(owner.topic(TOPIC))
        assert stored == acked
        assert list(stored) == list(range(len(stored)))
        return len(plan)


@pytest.mark.timeout(300)
def test_a_connection_cut_at_points_of_a_publish_neither_loses_nor_doubles(tmp_path: Path) -> None:
    assert cut_everywhere(tmp_path, step=100) >= 20


@pytest.mark.long
@pytest.mark.timeout(3_000)
def test_a_connection_cut_at_every_few_bytes_neither_loses_nor_doubles(tmp_path: Path) -> None:
    assert cut_everywhere(tmp_path, step=7) >= 300


def test_cuts_under_load_neither_lose_nor_double(tmp_path: Path) -> None:
    rng = random.Random(7)
    with (
        frazil.open(tmp_path) as owner,
        flight_door(owner, FlightSettings(port=0)) as door,
        cut_proxy(door.port) as proxy,
    ):
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(frazil.connect(proxy.address, give_up_ms=60_000)) for _ in range(2)]
            publishers = [
                Publisher(client.topic(TOPIC), f"client {at} thread {number}")
                for at, client in enumerate(clients)
                for number in range(3)
            ]
            for one in publishers:
                one.start()
            for number in range(8):
                if number % 2:  # else it may be cut again while they connect
                    await_answers(publishers, sum(len(one.acked) for one in publishers) + rng.randrange(1, 100))
                proxy.cut_after(rng.choice(["calls", "answers"]), rng.randrange(1, 3_000))
                assert proxy.was_cut.wait(SECONDS_MAX)
            await_answers(publishers, sum(len(one.acked) for one in publishers) + 1)
            for one in publishers:
                one.stop()
        assert proxy.cuts == 8
        check(contents(owner.topic(TOPIC)), publishers)


def kill_rounds(folder: Path, rounds: int) -> None:
    rng = random.Random(rounds)
    server = Server(folder)
    server.start()
    try:
        with frazil.connect(server.flight, give_up_ms=60_000) as remote:
            follower = remote.topic(TOPIC).read("earliest", follow=True)
            seen: list[tuple[int, bytes]] = []
            following = threading.Thread(target=lambda: seen.extend((one.offset, one.payload) for one in follower))
            following.start()
            publishers = [Publisher(remote.topic(TOPIC), f"thread {number}") for number in range(4)]
            for one in publishers:
                one.start()
            for _ in range(rounds):
                before = sum(len(one.acked) for one in publishers)
                pause(rng.uniform(0.2, 0.8))
                server.kill()
                pause(rng.uniform(0, 0.5))
                server.start()
                for _ in range(600):
                    if sum(len(one.acked) for one in publishers) > before + 100:
                        break
                    assert not any(one.failed for one in publishers)
                    pause(0.05)
            for one in publishers:
                one.stop()
            end = remote.topic(TOPIC).stats().end
            for _ in range(600):
                if len(seen) >= end:
                    break
                pause(0.05)
            follower.close()
            following.join(20)
        assert server.stop() == 0
    finally:
        server.kill()
    with frazil.open(folder / "data") as storage:
        stored = contents(storage.topic(TOPIC, create=False))
    check(stored, publishers)
    assert seen == sorted(stored.items()), "a follower sees each row once, whatever was cut"


@pytest.mark.timeout(300)
def test_kills_of_the_server_neither_lose_nor_double(tmp_path: Path) -> None:
    kill_rounds(tmp_path, rounds=2)


@pytest.mark.long
@pytest.mark.timeout(2_000)
def test_thirty_kills_of_the_server_neither_lose_nor_double(tmp_path: Path) -> None:
    kill_rounds(tmp_path, rounds=30)
