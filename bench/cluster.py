"""Three brokers on one etcd and one S3 server: how long topics pause when owners change: `make bench`.

All run on this machine and share its processors and disk. Leases are those of the default settings, and no topic moves
by itself. Loads are bounded in count and time. Nothing here is a test.

    cluster.py [--share N] [failover] [moves] [rebalance]    1/N of the rounds, moves and topics; all parts by default
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import httpx

import frazil
from measure import Figure, folder, percentile, report

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # the servers are a part of the tests

from parts.danube import Server
from parts.etcd import etcd_server
from parts.s3 import s3_server

BROKERS = ("b1", "b2", "b3")
TOPIC = "/bench/rows"
MESSAGE = b"m" * 1024
KILLS, FREEZES, MOVES, TOPICS = 7, 3, 10, 1_000
MOVE_BATCH, MOVE_RATE = 200, 10_000
PARTITIONS_MAX = 100
"""Of one call that creates topics."""
WAIT_SECONDS_MAX = 90.0
REBALANCE_SECONDS_MAX = 600.0


class Cluster:
    """The brokers, by name; calls go over HTTP to one that runs."""

    def __init__(self, brokers: dict[str, Server]) -> None:
        self.brokers = brokers

    def addresses(self, but: str | None = None) -> list[str]:
        return [f"grpc://127.0.0.1:{one.flight_port}" for name, one in self.brokers.items() if name != but]

    def call(self, broker: str, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        url = self.brokers[broker].http + path
        answer = httpx.request(method, url, json=body, timeout=REBALANCE_SECONDS_MAX, follow_redirects=True)
        answer.raise_for_status()
        return answer.json()

    def create(self, broker: str, topic: str, **values: Any) -> None:
        self.call(broker, "POST", "/v1/topics", {"topic": topic, **values})

    def owner(self, broker: str = BROKERS[0]) -> str:
        """Of the topic, as a broker knows it."""
        name: str | None = self.call(broker, "GET", f"/v1/topics{TOPIC}/owner")["owners"][0]["broker_id"]
        if name is None:
            raise RuntimeError(f"nobody owns {TOPIC}")
        return name

    def counts(self) -> dict[str, int]:
        found = self.call(BROKERS[0], "GET", "/v1/cluster/brokers")["items"]
        return {one["broker_id"]: one["topics"] for one in found}


@contextlib.contextmanager
def cluster(where: Path) -> Iterator[Cluster]:
    with contextlib.ExitStack() as stack:
        s3 = stack.enter_context(s3_server(where / "s3"))
        etcd, store = stack.enter_context(etcd_server(where / "etcd")), s3.settings(s3.make_bucket("bench"))
        brokers = {}
        for name in BROKERS:
            sections = {
                "cluster": {"enabled": True, "broker_id": name, "rebalance": False},
                "metadata": {"type": "etcd", "endpoints": [etcd.endpoint]},
                "objects": {"enabled": True, "store": store},
                "pipeline": {"enabled": False},
            }
            brokers[name] = Server(where / name, others=sections)
            stack.callback(_end, brokers[name])
            brokers[name].start()
        yield Cluster(brokers)


def _end(broker: Server) -> None:
    if broker.process is not None and broker.process.returncode is None:
        broker.kill()


class Publisher:
    """A numbered client in a thread: one batch after the other, each after the answer to the last."""

    def __init__(self, addresses: Sequence[str], count: int = 1, per_second: int | None = None) -> None:
        """`per_second` messages are due in batches of `count`; unset, as many as it can."""
        self.answered: list[tuple[float, float]] = []
        """When each batch was sent and answered."""
        self._count = count
        self._period = 0.0 if per_second is None else count / per_second
        self._addresses = addresses
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="publisher")

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.next_after(time.perf_counter())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def next_after(self, since: float) -> float:
        """When the first batch was answered that was sent after `since`."""
        place = len(self.answered)
        until = time.perf_counter() + WAIT_SECONDS_MAX
        while time.perf_counter() < until and self._failure is None:
            for sent, answered in self.answered[max(0, place - 1) :]:
                if sent > since:
                    return answered
            self._stop.wait(0.005)
        reason = "the publisher ended" if self._failure else f"no answer after {WAIT_SECONDS_MAX:g} s"
        raise RuntimeError(f"{TOPIC}: {reason}") from self._failure

    def longest_gap(self, since: float) -> float:
        """Between two answers, from the last one before `since`."""
        ends = [answered for _, answered in self.answered]
        return max(later - earlier for earlier, later in itertools.pairwise(ends) if later > since)

    def _run(self) -> None:
        try:
            self._publish()
        except Exception as error:  # noqa: BLE001  of whatever kind, who waits for it raises it
            self._failure = error

    def _publish(self) -> None:
        next_offset, batch = 0, [MESSAGE] * self._count
        with frazil.connect(self._addresses, producer="bench", give_up_ms=int(WAIT_SECONDS_MAX * 1_000)) as storage:
            topic, due = storage.topic(TOPIC, create=False), time.perf_counter()
            while not self._stop.is_set():
                self._stop.wait(max(0.0, due - time.perf_counter()))
                sent, due = time.perf_counter(), due + self._period
                offsets = topic.publish_many(batch)
                self.answered.append((sent, time.perf_counter()))
                if offsets.start != next_offset or len(offsets) != len(batch):
                    raise RuntimeError(f"{offsets} was answered instead of {next_offset}")
                next_offset = offsets.end


def failover(where: Path, share: int) -> list[Figure]:
    """Rounds of one client that goes on, for owners that are killed and for those that hang."""
    with cluster(where) as made:
        made.create(BROKERS[0], TOPIC, ack="object")
        with Publisher(made.addresses()) as publisher:
            killed = [_killed(made, publisher) for _ in range(max(1, KILLS // share))]
            frozen = [_frozen(made, publisher) for _ in range(max(1, FREEZES // share))]
    return [
        *_limits(f"owner killed, ack object, {len(killed)} rounds: until the next answer", killed),
        *_limits(f"owner stopped (SIGSTOP), ack object, {len(frozen)} rounds: until the next answer", frozen),
    ]


def _killed(made: Cluster, publisher: Publisher) -> float:
    owner = made.owner()
    started = time.perf_counter()
    made.brokers[owner].kill()
    taken = publisher.next_after(time.perf_counter()) - started
    made.brokers[owner].start()
    return taken


def _frozen(made: Cluster, publisher: Publisher) -> float:
    """It stays stopped until another broker has answered, and so until its lease has ended."""
    owner = made.owner()
    other = next(name for name in BROKERS if name != owner)
    process = made.brokers[owner].process
    assert process is not None
    started = time.perf_counter()
    os.kill(process.pid, signal.SIGSTOP)
    try:
        _wait_until(lambda: _is_stopped(process.pid))
        taken = publisher.next_after(time.perf_counter()) - started
        if made.owner(other) == owner:
            raise RuntimeError(f"{owner} is stopped, and still owns {TOPIC}")
    finally:
        os.kill(process.pid, signal.SIGCONT)
    _wait_until(lambda: made.owner(owner) != owner)
    return taken


def _is_stopped(pid: int) -> bool:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return all((thread / "stat").read_text().rpartition(") ")[2].startswith("T") for thread in threads)


def _wait_until(is_so: Callable[[], bool]) -> None:
    until = time.perf_counter() + WAIT_SECONDS_MAX
    while not is_so():
        if time.perf_counter() > until:
            raise RuntimeError(f"waited for {WAIT_SECONDS_MAX} s in vain")
        time.sleep(0.01)


def _limits(name: str, taken: list[float]) -> list[Figure]:
    half, most = percentile(taken, 0.5), max(taken)
    return [_figure(f"{name}, p50", half, 5), _figure(f"{name}, max", most, 10)]


def _figure(name: str, taken: float, limit: float) -> Figure:
    return Figure(name, f"{taken:.2f} s", f"{limit:g} s", taken / limit, "≤ 1", taken <= limit)


def moves(where: Path, share: int) -> list[Figure]:
    """A topic with ack disk goes around: what was not uploaded is uploaded while nobody can publish."""
    gaps = []
    with cluster(where) as made:
        made.create(BROKERS[0], TOPIC)
        with Publisher(made.addresses(), MOVE_BATCH, MOVE_RATE) as publisher:
            for number in range(1, max(1, MOVES // share) + 1):
                to, started = BROKERS[number % len(BROKERS)], time.perf_counter()
                made.call(BROKERS[0], "POST", f"/v1/topics{TOPIC}/move", {"to": to})
                last = publisher.next_after(time.perf_counter())
                gaps.append(publisher.longest_gap(started))
                publisher.next_after(last + 1)
    name = f"{len(gaps)} moves under {MOVE_RATE:,} messages of 1 KiB a second, ack disk: longest gap of answers"
    half, most = percentile(gaps, 0.5), max(gaps)
    return [
        _figure(f"{name}, p50", half, 2),
        Figure(f"{name}, max", f"{most:.2f} s", "2 s", most / 2, "-", True),
    ]


def rebalance(where: Path, share: int) -> list[Figure]:
    """Topics of one row each, all at one broker, until a rebalance finds nothing to move."""
    count = max(len(BROKERS), TOPICS // share)
    with cluster(where) as made:
        started = time.perf_counter()
        for first in range(0, count, PARTITIONS_MAX):
            partitions = min(PARTITIONS_MAX, count - first)
            made.create(BROKERS[0], f"/bench/from{first}", partitions=partitions)
        created = time.perf_counter() - started
        with frazil.connect(made.addresses()) as storage:
            for name in storage.topics():
                topic = storage.topic(name, create=False)
                topic.publish(MESSAGE)
                topic.close()
        started = time.perf_counter()
        while made.call(BROKERS[0], "POST", "/v1/cluster/rebalance", {})["moves"]:
            if time.perf_counter() - started > REBALANCE_SECONDS_MAX:
                raise RuntimeError(f"not even after {REBALANCE_SECONDS_MAX} s: {made.counts()}")
        taken, counts = time.perf_counter() - started, made.counts()
    if sum(counts.values()) != count or max(counts.values()) - min(counts.values()) > 1:
        raise RuntimeError(f"{count} topics are not even: {counts}")
    return [
        Figure(f"{count:,} topics created at one broker", f"{created:.1f} s", "-", 0, "-", True),
        _figure(f"{count:,} topics spread over {len(BROKERS)} brokers", taken, 60),
    ]


def main() -> None:
    parts = {"failover": failover, "moves": moves, "rebalance": rebalance}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=int, default=1, help="1/N of the load")
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(parts))
    given = parser.parse_args()
    chosen = given.parts or list(parts)
    if unknown := [part for part in chosen if part not in parts]:  # argparse takes no choices of none or several
        parser.error(f"there is no part {unknown[0]}; there are {', '.join(parts)}")
    with folder() as where:
        figures = [one for part in chosen for one in parts[part](where.absolute() / part, max(1, given.share))]
    report("Several brokers (etcd and S3 on this machine)", figures)


if __name__ == "__main__":
    main()
