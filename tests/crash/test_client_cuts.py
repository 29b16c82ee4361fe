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
from frazil.serve.flight import flight_door
from parts.cut_proxy import CutProxy, cut_proxy
from parts.danube import Server
from parts.processes import pause

TOPIC = "/default/orders"


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
        self.join(60)
        assert not self.is_alive()


def check(stored: dict[int, bytes], publishers: list[Publisher]) -> None:
    for one in publishers:
        assert one.failed is None
        assert {offset: stored.get(offset) for offset in one.acked} == one.acked
        mine = [payload for _, payload in sorted(stored.items()) if payload.startswith(f"{one.name} ".encode())]
        assert mine == [f"{one.name} {number}".encode() for number in range(one.sent)], "in order, each once"
    assert len(stored) == sum(one.sent for one in publishers)


def contents(topic: frazil.Topic) -> dict[int, bytes]:
    return {message.offset: message.payload for message in topic.read()}


def publish_through(proxy: CutProxy, name: str, what: str = "", count: int = 0) -> dict[int, bytes]:
    """A new stream, a lone message, and a batch behind it; cut after so many bytes."""
    with frazil.connect(proxy.address, give_up_ms=60_000) as remote:
        topic = remote.topic(TOPIC)
        before = dict(proxy.passed)
        proxy.cut_after(what, count)
        first = topic.publish(f"{name} 0")
        more = topic.publish_many([f"{name} {number}" for number in (1, 2)])
        proxy.cut_after("", 0)
        proxy.used = {name: proxy.passed[name] - before[name] for name in before}
    return dict(zip([first, *more], [f"{name} {number}".encode() for number in range(3)], strict=True))


def cut_everywhere(folder: Path, step: int) -> int:
    with (
        frazil.open(folder) as owner,
        flight_door(owner, FlightSettings(port=0)) as door,
        cut_proxy(door.port) as proxy,
    ):
        acked = publish_through(proxy, "to know the bytes")
        plan = [(what, count) for what, size in proxy.used.items() for count in range(1, size, step)]
        for number, (what, count) in enumerate(plan):
            acked |= publish_through(proxy, f"round {number}", what, count)
        assert proxy.cuts > len(plan) * 0.8  # but for those behind the last answer
        stored = contents(owner.topic(TOPIC))
        assert stored == acked
        assert list(stored) == list(range(3 * (len(plan) + 1)))
        return len(plan)


@pytest.mark.timeout(300)
def test_a_connection_cut_at_points_of_a_publish_neither_loses_nor_doubles(tmp_path: Path) -> None:
    assert cut_everywhere(tmp_path, step=120) >= 20


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
            for _ in range(8):
                pause(rng.uniform(0.05, 0.3))
                proxy.cut_after(rng.choice(["calls", "answers"]), rng.randrange(1, 3_000))
            for one in publishers:
                one.stop()
        assert proxy.cuts >= 4
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
