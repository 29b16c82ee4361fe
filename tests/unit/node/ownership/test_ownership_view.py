"""What a broker knows of the cluster, change by change."""

from __future__ import annotations

import json

from frazil.core.cluster import BrokerState
from frazil.core.names import TopicName
from frazil.meta import cluster_keys as keys
from frazil.meta.store import Listing, StoredEntry
from frazil.meta.topic_records import TOPIC_RECORDS, LogIdentity, TopicIdentity, topic_record_key
from frazil.node.ownership.view import ClusterView

BASE = TopicName("default", "orders")
PARTS = [TopicName("default", f"orders-part-{number}") for number in range(3)]


def record(*owners: tuple[str, int], ack: str | None = None) -> bytes:
    logs = {
        part: LogIdentity(f"log {part}", 0, owner=owner, epoch=epoch, ack=ack)
        for part, (owner, epoch) in zip(PARTS, owners, strict=False)
    }
    return TopicIdentity(BASE, logs).encode()


def session(name: str) -> bytes:
    return json.dumps({"session": name, "process": None}).encode()


def view_of(**values: bytes) -> ClusterView:
    """A view after one change per value, of brokers and the record of the topic."""
    view = ClusterView()
    for revision, (name, value) in enumerate(values.items(), 1):
        if name == "record":
            view.apply([(topic_record_key(BASE), value, revision)], TOPIC_RECORDS)
        else:
            view.apply([(keys.BROKERS + name, value, revision)], keys.CLUSTER)
    return view


def test_partitions_have_owners_of_their_own_and_are_counted_by_broker() -> None:
    view = view_of(a=session("1"), b=session("2"), record=record(("a", 1), ("b", 4), ("a", 2)))
    assert {part: (state.owner, state.epoch) for part in PARTS if (state := view.topic(part)) is not None} == {
        PARTS[0]: ("a", 1),
        PARTS[1]: ("b", 4),
        PARTS[2]: ("a", 2),
    }
    assert view.family(PARTS[1]) == set(PARTS)
    assert view.topic(BASE) is None
    assert {one.broker_id: one.topics for one in view.brokers()} == {"a": 2, "b": 1}
    changes = view.apply([(topic_record_key(BASE), record(("b", 2), ("b", 4)), 9)], TOPIC_RECORDS)
    assert changes.topics == {PARTS[0], PARTS[2]}, "only those that have changed"
    assert view.owned_by("b") == {PARTS[0], PARTS[1]}
    assert not view.owned_by("a")
    view.apply([(topic_record_key(BASE), None, 10)], TOPIC_RECORDS)
    assert not view.topics()
    assert not view.family(BASE)


def test_only_topics_whose_rows_are_in_the_store_are_orphans() -> None:
    for ack, orphans in ((None, set()), ("memory", set()), ("object", {PARTS[0]})):
        view = view_of(b=session("2"), record=record(("a", 1), ("b", 1), ack=ack))
        assert view.failing_over(view.gone_owners()) == orphans
        assert [one.state for one in view.brokers()] == [BrokerState.GONE, BrokerState.ACTIVE]


def test_what_this_broker_learns_itself_never_undoes_what_the_watch_has_shown() -> None:
    view, key = view_of(record=record(("a", 1))), topic_record_key(BASE)
    view.apply([(key, record(("b", 2)), 5), (key, None, 6)], TOPIC_RECORDS)
    assert not view.learn(key, record(("b", 2)), 5).topics
    assert view.topic(PARTS[0]) is None
    assert view.learn(key, record(("c", 1)), 7).topics == {PARTS[0]}
    assert not view.apply([(key, record(("c", 1)), 7)], TOPIC_RECORDS).topics, "the watch shows it once more"


def test_a_listing_is_applied_as_changes_and_keeps_what_is_newer() -> None:
    view, key = view_of(record=record(("a", 1), ("a", 1))), topic_record_key(BASE)
    other = TopicIdentity(
        TopicName("default", "x"), {TopicName("default", "x"): LogIdentity("x", 0, owner="a", epoch=1)}
    )
    view.learn(topic_record_key(other.topic), other.encode(), 30)
    listing = Listing([StoredEntry(key, record(("a", 1), ("b", 2)), 12)], 20)
    changes = view.replace(TOPIC_RECORDS, listing, is_restored=False)
    assert changes.topics == {PARTS[1]}
    assert view.topic(other.topic) is not None, "it was created after the listing"


def test_after_a_restore_the_listing_has_the_last_word() -> None:
    view, key = view_of(record=record(("a", 1))), topic_record_key(BASE)
    view.apply([(key, record(("b", 2)), 50)], TOPIC_RECORDS)
    old = Listing([StoredEntry(key, record(("a", 1)), 10)], 12)
    assert not view.replace(TOPIC_RECORDS, old, is_restored=False).topics
    assert view.replace(TOPIC_RECORDS, old, is_restored=True).topics == {PARTS[0]}
    assert view.owned_by("a") == {PARTS[0]}


def test_a_topic_is_served_by_the_process_that_its_record_and_the_session_name() -> None:
    view = view_of(a=session("1"), record=record(("a", 2)))
    key = keys.topic_key(keys.SERVING, PARTS[0])
    for serving, is_served in (
        (keys.ServingRecord("a", "1", 2), True),
        (keys.ServingRecord("a", "1", 1), False),
        (keys.ServingRecord("a", "0", 2), False),
        (keys.ServingRecord("b", "1", 2), False),
    ):
        view.apply([(key, serving.encode(), view.revision(key) + 100)], keys.CLUSTER)
        assert (view.serving(PARTS[0]) is not None) is is_served, serving


def test_records_that_cannot_be_read_are_ignored_and_a_topic_stays_where_it_was() -> None:
    view = view_of(a=session("1"), record=record(("a", 1)))
    view.apply([(topic_record_key(BASE), b"{", 20)], TOPIC_RECORDS)
    assert view.owned_by("a") == {PARTS[0]}
    for prefix in (keys.DOORS, keys.MEMBERS, keys.LOADS):
        view.apply([(prefix + "a", b'{"state": "odd"}', view.revision(prefix + "a") + 30)], keys.CLUSTER)
    view.apply([(keys.topic_key(keys.MOVES, PARTS[0]), b"[]", 40), (keys.LEADER, b"null", 41)], keys.CLUSTER)
    assert view.leader() is None
    assert not view.moves()
    (broker,) = view.brokers()
    assert (broker.state, broker.addresses) == (BrokerState.ACTIVE, {})
    assert view.targets() == [], "its doors are not open yet"


def test_a_beat_concerns_nobody_and_a_new_session_does() -> None:
    view = view_of(a=session("1"))
    assert not view.apply([(keys.BROKERS + "a", session("1"), 8)], keys.CLUSTER).brokers
    assert view.apply([(keys.BROKERS + "a", session("2"), 9)], keys.CLUSTER).brokers == {"a"}


def test_a_broker_that_stops_or_is_drained_is_no_target() -> None:
    view = view_of(a=session("1"), b=session("2"), c=session("3"))
    for number, name in enumerate("abc"):
        doors = keys.DoorsRecord({"flight": name}, stopping=name == "a")
        view.apply([(keys.DOORS + name, doors.encode(), 20 + number)], keys.CLUSTER)
    member = keys.MemberRecord(BrokerState.DRAINING, 2)
    view.apply([(keys.MEMBERS + "b", member.encode(), 30)], keys.CLUSTER)
    assert [one.broker_id for one in view.targets()] == ["c"]
    assert view.draining() == {"b": member}
    assert [one.state for one in view.brokers()] == [BrokerState.DRAINING, BrokerState.DRAINING, BrokerState.ACTIVE]


def test_the_traffic_of_a_topic_counts_for_its_owner_alone() -> None:
    view = view_of(a=session("1"), b=session("2"), record=record(("a", 1), ("b", 1)))
    view.apply([(keys.LOADS + "a", keys.LoadsRecord({str(PARTS[0]): 5.0}, 0.5).encode(), 20)], keys.CLUSTER)
    assert view.load_of(PARTS[0]) == 6.0
    assert {one.broker_id: one.load for one in view.brokers()} == {"a": 6.5, "b": 1.0}
    view.apply([(topic_record_key(BASE), record(("b", 2), ("b", 1)), 21)], TOPIC_RECORDS)
    assert {one.broker_id: one.load for one in view.brokers()} == {"a": 0.5, "b": 2.0}


def test_a_listing_that_the_watch_has_overtaken_brings_nothing_back() -> None:
    view = view_of(record=record(("a", 1)))
    move = keys.topic_key(keys.MOVES, PARTS[0])
    view.apply([(move, keys.MoveRecord("b", "a").encode(), 10)], keys.CLUSTER)
    late = Listing([StoredEntry(move, keys.MoveRecord("b", "a").encode(), 10)], 12)
    view.apply([(move, None, 15)], keys.CLUSTER)
    assert not view.replace(keys.CLUSTER, late, is_restored=False).topics
    assert view.move(PARTS[0]) is None
