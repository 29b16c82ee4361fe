"""SQL at a broker of a cluster: rows that are not moved yet come from the brokers that own the topics, or it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from tiers import publish

import frazil
from frazil.core.credentials import NO_CREDENTIALS, ClientCredentials
from frazil.core.names import TopicName
from frazil.core.offsets import OffsetRange
from frazil.core.principal import LOCAL
from frazil.log.info import LogInfo
from frazil.node.query.session import SqlSession
from frazil.node.tiers.cluster_logs import ClusterLogs, ForwardedCaller, OtherBrokers
from frazil.node.tiers.logs import OwnerView
from parts.cluster import Brokers, brokers
from parts.moving import HandMover

TOPIC, PARTS = "/shop/orders", "/shop/parts"
COUNTS = "select count(*), count(distinct _offset), min(_offset), max(_offset) from shop.orders"
Ask = Callable[..., list[tuple[object, ...]]]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Brokers]:
    with brokers(tmp_path / "data") as found:
        topic = found.node.storage.topic(TOPIC)
        publish(topic, 300)
        HandMover(found.node.settings).move(topic, 200)
        found.cluster.give(TOPIC, "a")
        yield found


def asked_at(two: Brokers, broker: str, query: str, others: OtherBrokers | None = None) -> list[tuple[object, ...]]:
    settings, view = two.node.settings, OwnerView(two[broker].flight, NO_CREDENTIALS, two.node.settings)
    logs = ClusterLogs(view, settings, others or OtherBrokers(NO_CREDENTIALS))
    with SqlSession(settings, logs, confined=True) as session:
        return [tuple(row.values()) for batch in session.run(query).batches for row in batch.to_pylist()]


def test_every_broker_sees_the_rows_of_table_and_log_once(two: Brokers) -> None:
    for broker in "ab":
        assert asked_at(two, broker, COUNTS) == [(300, 300, 0, 299)]
    HandMover(two.node.settings).move(two.node.storage.topic(TOPIC))
    publish(two.node.storage.topic(TOPIC), 10)
    for broker in "ab":
        assert asked_at(two, broker, COUNTS) == [(310, 310, 0, 309)]


def test_partitions_of_all_brokers_are_one_relation(two: Brokers) -> None:
    for number, owner in enumerate("abb"):
        two.node.storage.topic(f"{PARTS}-part-{number}").publish_many(["x"] * (number + 1))
        two.cluster.give(f"{PARTS}-part-{number}", owner)
    for broker in "ab":
        found = asked_at(two, broker, "select _topic_partition, count(*) from shop.parts group by 1 order by 1")
        assert found == [(0, 1), (1, 2), (2, 3)]
        assert asked_at(two, broker, 'select count(*) from shop."parts-part-2"') == [(3,)]


def test_an_owner_that_cannot_be_asked_ends_the_query(two: Brokers) -> None:
    two.cluster.addresses["a"] = {"flight": "grpc://127.0.0.1:1"}
    with pytest.raises(
        frazil.TopicUnavailable, match=r"/shop/orders is not served now: its broker a cannot be reached"
    ):
        asked_at(two, "b", COUNTS)
    two.cluster.unavailable[TopicName.parse(TOPIC)] = "its broker a is gone"
    with pytest.raises(frazil.TopicUnavailable, match="its broker a is gone"):
        asked_at(two, "b", COUNTS)


def test_a_broker_that_has_lost_a_log_meanwhile_ends_the_query(two: Brokers) -> None:
    """Two brokers name each other while a topic moves: neither answers for it."""
    real = type(two["a"].node._ownership).must_own

    def must_own(self: object, topic: TopicName) -> None:
        if self.broker_id == "a" and topic.topic == "orders":  # type: ignore[attr-defined]
            raise frazil.NotOwner(str(topic), "b", two.cluster.addresses["b"])
        real(self, topic)

    with (
        mock.patch.object(type(two["a"].node._ownership), "must_own", must_own),
        pytest.raises(frazil.TopicUnavailable, match="the broker a does not serve it; it may be moving"),
    ):
        asked_at(two, "b", COUNTS)


def test_a_topic_that_moves_before_its_rows_are_fetched_is_looked_up_again(two: Brokers) -> None:
    fetched: list[OffsetRange] = []
    real = ClusterLogs.read

    def read(self: ClusterLogs, info: LogInfo, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        if not fetched:
            two.cluster.give(TOPIC, "b")
        fetched.append(wanted)
        return real(self, info, wanted)

    with mock.patch.object(ClusterLogs, "read", read):
        assert asked_at(two, "b", COUNTS) == [(300, 300, 0, 299)]
    assert fetched == [OffsetRange(200, 300)] * 2


def test_without_credentials_of_its_caller_a_query_asks_no_other_broker(two: Brokers) -> None:
    settings = two.node.settings
    with pytest.raises(frazil.NotOwner, match="owned by the broker a; send the call there"):
        asked_at(two, "b", COUNTS, OtherBrokers.of_caller(settings, None))
    clear = OtherBrokers.of_caller(settings, ForwardedCaller("secret", needs_tls=True))
    with pytest.raises(frazil.NotOwner):
        asked_at(two, "b", COUNTS, clear)
    assert asked_at(two, "a", COUNTS, OtherBrokers(None)) == [(300, 300, 0, 299)]


def test_the_owner_checks_the_rights_of_the_caller(tmp_path: Path) -> None:
    with brokers(tmp_path / "data", security={"enabled": True}) as two:
        publish(two.node.storage.topic(TOPIC), 100)
        two.cluster.give(TOPIC, "a")

        def others(*bindings: tuple[str, str]) -> OtherBrokers:
            record, secret = two.node.keys(LOCAL).create("tests")
            for role, scope in bindings:
                two.node.bindings(LOCAL).add(record.principal, role, scope)
            return OtherBrokers(ClientCredentials(token=secret))

        reader, operator = others(("admin", "/shop/*")), others(("admin", "*"))
        at_b = OwnerView(two["b"].flight, operator.credentials or NO_CREDENTIALS, two.node.settings)
        for allowed in (reader, operator):
            logs = ClusterLogs(at_b, two.node.settings, allowed)
            (info,) = logs.of(TopicName.parse(TOPIC))
            assert (info.files, info.folder) == ((), None)
            assert sum(batch.num_rows for batch in logs.read(info, OffsetRange(0, 100))) == 100
        with pytest.raises(frazil.PermissionDenied):
            ClusterLogs(at_b, two.node.settings, others(("admin", "/other/*"))).of(TopicName.parse(TOPIC))
        there = OwnerView(two["a"].flight, reader.credentials or NO_CREDENTIALS, two.node.settings)
        with pytest.raises(frazil.PermissionDenied):  # where the files are is for operators
            ClusterLogs(there, two.node.settings, reader).of(TopicName.parse(TOPIC))
