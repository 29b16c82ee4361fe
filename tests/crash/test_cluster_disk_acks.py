"""Topics of a cluster that are acknowledged by a disk: they wait for that disk, and move without a loss."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import frazil
from frazil.core.errors import TopicUnavailable
from parts.broker_cluster import BrokerCluster, broker_cluster
from parts.processes import pause

TOPIC = "/default/orders"
GONE_SECONDS_MAX = 30


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BrokerCluster]:
    with broker_cluster(tmp_path, names=("b1", "b2"), etcd_names=("one",)) as cluster:
        made = httpx.post(f"{cluster.brokers[0].http}/v1/topics", json={"topic": TOPIC, "ack": "disk"}, timeout=30)
        assert made.status_code in (200, 201), made.text
        yield cluster


def texts(cluster: BrokerCluster) -> list[tuple[int, str]]:
    with frazil.connect(cluster.flight) as storage:
        return [(one.offset, one.payload.decode()) for one in storage.topic(TOPIC, create=False).read()]


def publish(cluster: BrokerCluster, start: int, end: int) -> None:
    with frazil.connect(cluster.flight, producer="p") as storage:
        topic = storage.topic(TOPIC, create=False)
        assert [topic.publish(str(number)) for number in range(start, end)] == list(range(start, end))


def numbered(end: int) -> list[tuple[int, str]]:
    return [(number, str(number)) for number in range(end)]


@pytest.mark.timeout(180)
def test_a_topic_waits_for_the_disk_of_its_broker_and_has_lost_nothing(cluster: BrokerCluster) -> None:
    publish(cluster, 0, 100)
    owner, other = cluster.brokers
    owner.kill()
    for _ in range(GONE_SECONDS_MAX * 10):
        answer = httpx.get(f"{other.http}/v1/topics{TOPIC}/owner", timeout=10).json()["owners"][0]
        if answer["problem"]:
            break
        pause(0.1)
    assert "b1" in answer["problem"], answer
    with frazil.connect(other.flight, give_up_ms=500) as storage, pytest.raises(TopicUnavailable, match="b1"):
        storage.topic(TOPIC, create=False).publish("lost?")
    owner.start()
    publish(cluster, 100, 110)
    assert texts(cluster) == numbered(110)


@pytest.mark.timeout(180)
def test_a_topic_moves_with_all_its_rows_and_goes_on_at_the_next_offset(cluster: BrokerCluster) -> None:
    publish(cluster, 0, 100)
    moved = httpx.post(f"{cluster.brokers[0].http}/v1/topics{TOPIC}/move", json={"to": "b2"}, timeout=60)
    assert moved.status_code == 200, moved.text
    cluster.brokers[0].kill()
    publish(cluster, 100, 110)
    assert texts(cluster) == numbered(110)
