"""Owners of topics fail under load, in every way that brokers fail; stock Danube clients and Frazil's own stay up.

Nothing acknowledged is lost, numbered rows are stored once, offsets have no gap, and each key stays in order.
"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from cluster_load import Load, check_load

import frazil
from parts.balancer import balancer
from parts.broker_cluster import Broker, BrokerCluster, broker_cluster, small_disks
from parts.processes import pause

TOPICS = ("/default/one", "/default/two", "/default/three")
PAUSE_SECONDS = 30.0
SERVED_SECONDS_MAX = 10.0
"""From the death of an owner to the next acknowledged message of its topic."""
NOTICED_SECONDS_MAX = 30.0
"""A client gives up a host that hangs after 15 s."""


@dataclass
class Rounds:
    cluster: BrokerCluster
    load: Load
    served_seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By fault: until the client that publishes has its next answer."""
    newcomer_seconds: list[float] = field(default_factory=list)
    """From the moment the owner hangs: until a client that begins then has its first answer, from another broker."""

    def run(self, fault: str, topic: str) -> None:
        act: Callable[[str], float] = getattr(self, fault)
        seconds = act(topic)
        self.served_seconds[fault].append(seconds)
        rounds = sum(map(len, self.served_seconds.values()))
        print(f"round {rounds}: {fault} {topic} {seconds:.2f} s, load average {os.getloadavg()[0]:.1f}", flush=True)

    def report(self) -> str:
        """Return the figures of each fault, for a reader of `pytest -s`."""
        timed = {**self.served_seconds, "hang, new client": self.newcomer_seconds}
        lines = [f"{fault}: {figures(seconds)}" for fault, seconds in timed.items() if seconds]
        for topic in self.load.topics:
            lines.append(f"{topic}: {len(self.load.numbered[topic])} numbered, {len(self.load.stock[topic])} stock")
        made_again = sum(self.load.made_again.values())
        return "\n".join([*lines, f"stock clients that were made again: {made_again}"])

    def owner(self, topic: str) -> Broker:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            for one in self.cluster.brokers:
                if one.is_running and (name := _owner_at(one, topic)) is not None:
                    return self.cluster.named(name)
            pause(0.05)
        raise AssertionError(f"no broker says who owns {topic}")

    def kill(self, topic: str) -> float:
        owner = self.owner(topic)
        owner.kill()
        seconds = self.await_service(topic)
        owner.start()
        return seconds

    def hang(self, topic: str) -> float:
        owner = self.owner(topic)
        with owner.paused():
            self.newcomer_seconds.append(self.await_newcomer(topic, but=owner))
            seconds = self.newcomer_seconds[-1] + self.await_service(topic)
            pause(PAUSE_SECONDS)
        return seconds

    def cut_off_etcd(self, topic: str) -> float:
        with self.owner(topic).cut_off_etcd():
            pause(5)
            return self.await_service(topic)

    def cut_off_s3(self, topic: str) -> float:
        """Nobody can acknowledge for this owner; once it is back, all goes on."""
        with self.owner(topic).cut_off_s3():
            pause(3)
        return self.await_service(topic)

    def fill_disk(self, topic: str) -> float:
        """Nothing is acknowledged by this owner while its disk is full; with room again, all goes on."""
        with self.owner(topic).full_disk():
            pause(3)
        return self.await_service(topic)

    def restart_all(self, topic: str) -> float:
        for broker in self.cluster.brokers:
            assert broker.stop() == 0
            broker.start()
        return self.await_service(topic)

    def await_newcomer(self, topic: str, but: Broker) -> float:
        """Publish a message as a client that does not know the broker that hangs; return the seconds."""
        started = time.monotonic()
        addresses = [at for one, at in zip(self.cluster.brokers, self.cluster.flight, strict=True) if one is not but]
        with frazil.connect(addresses) as storage:
            storage.topic(topic, create=False).publish("a newcomer")
        return time.monotonic() - started

    def await_service(self, topic: str) -> float:
        """Wait for a message that was sent and acknowledged from now on; return the seconds."""
        started, before = time.monotonic(), self.load.count(topic)
        while self.load.count(topic) <= before + 1:  # the answer to the first one may have been on its way
            assert not self.load.failed, "\n".join(self.load.failed)
            assert time.monotonic() - started < 60, f"{topic} is not served again"
            pause(0.01)
        return time.monotonic() - started


def _owner_at(broker: Broker, topic: str) -> str | None:
    """Ask a broker for the name of the owner; None if it knows of none, or does not answer."""
    try:
        answer = httpx.get(f"{broker.http}/v1/topics{topic}/owner", timeout=5)
    except httpx.HTTPError:
        return None
    name: str | None = answer.json()["owners"][0]["broker_id"] if answer.status_code == 200 else None
    return name


def create_topics(cluster: BrokerCluster) -> None:
    """One at each broker, which then owns it."""
    for topic, broker in zip(TOPICS, cluster.brokers, strict=True):
        answer = httpx.post(f"{broker.http}/v1/topics", json={"topic": topic, "ack": "object"}, timeout=30)
        assert answer.status_code in (200, 201), answer.text


def run_rounds(cluster: BrokerCluster, faults: list[str], seed: int, silent_seconds_max: float = 2.0) -> Rounds:
    """Run the faults under load, each at the owner of a topic; then check what clients were told."""
    rng = random.Random(seed)
    create_topics(cluster)
    rounds = Rounds(cluster, Load(TOPICS, silent_seconds_max=silent_seconds_max))
    with balancer([one.port for one in cluster.brokers]) as front, rounds.load.running(cluster.flight, front.url):
        for topic in TOPICS:
            rounds.await_service(topic)
        for fault in faults:
            rounds.run(fault, rng.choice(TOPICS))
    print(rounds.report())
    check_load(rounds.load, cluster.flight)
    return rounds


def figures(seconds: list[float]) -> str:
    p50, p90, p99 = (percentile(seconds, part) for part in (0.5, 0.9, 0.99))
    return f"{len(seconds)} rounds, p50 {p50:.2f} s, p90 {p90:.2f} s, p99 {p99:.2f} s, most {max(seconds):.2f} s"


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


@pytest.mark.timeout(300)
def test_an_owner_that_is_killed_is_followed_by_another(tmp_path: Path) -> None:
    with broker_cluster(tmp_path, etcd_names=("one",)) as cluster:
        rounds = run_rounds(cluster, ["kill"], seed=1)
    assert rounds.served_seconds["kill"][0] < SERVED_SECONDS_MAX


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_an_owner_goes_on_once_its_full_disk_has_room(tmp_path: Path) -> None:
    with small_disks(tmp_path), broker_cluster(tmp_path, etcd_names=("one",)) as cluster:
        run_rounds(cluster, ["fill_disk", "kill", "fill_disk"], seed=4)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_brokers_that_are_restarted_one_by_one_show_no_error_to_clients(tmp_path: Path) -> None:
    with broker_cluster(tmp_path) as cluster:
        rounds = run_rounds(cluster, ["restart_all", "restart_all"], seed=3, silent_seconds_max=15)
    assert not rounds.load.made_again, "stock clients follow by themselves"


@pytest.mark.long
@pytest.mark.timeout(7_200)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_hundred_rounds_of_all_faults(tmp_path: Path) -> None:
    faults = ["kill"] * 50 + ["hang"] * 15 + ["cut_off_etcd"] * 15 + ["cut_off_s3"] * 10 + ["fill_disk"] * 10
    random.Random(7).shuffle(faults)
    with small_disks(tmp_path), broker_cluster(tmp_path) as cluster:
        rounds = run_rounds(cluster, faults, seed=2)
    found = rounds.served_seconds
    assert percentile(found["kill"], 0.99) < SERVED_SECONDS_MAX
    assert percentile(rounds.newcomer_seconds, 0.99) < SERVED_SECONDS_MAX
    assert max(found["hang"]) < NOTICED_SECONDS_MAX


@pytest.mark.long
@pytest.mark.timeout(300)
def test_an_owner_that_is_cut_off_from_etcd_is_followed_by_another(tmp_path: Path) -> None:
    with broker_cluster(tmp_path, etcd_names=("one",)) as cluster:
        rounds = run_rounds(cluster, ["cut_off_etcd"] * 3, seed=1)
    assert max(rounds.served_seconds["cut_off_etcd"]) < SERVED_SECONDS_MAX
