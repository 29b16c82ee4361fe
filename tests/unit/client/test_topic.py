"""A topic over the network has the face of the embedded one: the same answers, the same errors."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest

import frazil
from frazil.core.settings import FlightSettings
from frazil.doors.flight.door import FlightDoor, flight_door
from frazil.doors.flight.put import numbered as numbered_put

TOPIC = "/default/orders"
TYPED = pa.schema([pa.field("sensor", pa.string(), nullable=False), pa.field("celsius", pa.float64())])


def rows(*celsius: float | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"sensor": "a", "celsius": one} for one in celsius], schema=TYPED)


def payloads(topic: frazil.Topic | frazil.RemoteTopic) -> list[bytes]:
    return [message.payload for message in topic.read()]


@pytest.mark.parametrize(
    ("mine", "embedded"), [(frazil.RemoteTopic, frazil.Topic), (frazil.RemoteStorage, frazil.Storage)]
)
def test_the_face_is_that_of_the_embedded_one(mine: type, embedded: type) -> None:
    own = {"log", "begin_publish_few", "open_producer", "producer_state", "settings", "kept_by_guards"}
    own |= {"metrics", "budget", "cache", "opened_topics", "maintain"}  # of the process that owns the folder
    own |= {"add_guard", "remove_guard", "guards", "record", "family", "names", "check_new", "adopt_topic"}
    for name, member in inspect.getmembers(embedded):
        if name.startswith("_") or name in own:
            continue
        assert hasattr(mine, name), name
        if inspect.isfunction(member):
            internal = {"sent", "log_id", "log_ids"}  # given by the broker, which stores them before the log is made
            theirs = [one for one in inspect.signature(member).parameters if one not in internal]
            ours = [one for one in inspect.signature(getattr(mine, name)).parameters if one != "force"]
            assert ours == theirs, name


def test_what_is_published_is_durable_and_has_its_offset(owner: frazil.Storage, remote: frazil.RemoteStorage) -> None:
    topic = remote.topic(TOPIC)
    assert topic.publish("tea", key="anna", attributes={"size": "xl"}) == 0
    assert topic.publish_many(["rye", frazil.Outgoing(b"jam", b"bob")]) == frazil.OffsetRange(1, 3)
    assert topic.publish_many(pa.RecordBatch.from_pydict({"_payload": [b"x"]})) == frazil.OffsetRange(3, 4)
    stored = list(owner.topic(TOPIC).read())
    assert [(one.offset, one.payload, one.key, one.attributes) for one in stored] == [
        (0, b"tea", b"anna", {"size": "xl"}), (1, b"rye", None, {}), (2, b"jam", b"bob", {}), (3, b"x", None, {}),
    ]  # fmt: skip
    assert list(topic.read()) == stored
    assert topic.stats() == owner.topic(TOPIC).stats()
    assert topic.sync() == 4


def test_reading_begins_and_ends_where_it_is_asked_to(owner: frazil.Storage, remote: frazil.RemoteStorage) -> None:
    own = owner.topic(TOPIC)
    for first in range(0, 100, 10):
        own.publish_many([f"{number}" for number in range(first, first + 10)])
    topic = remote.topic(TOPIC)
    time = next(own.read(37)).append_time
    starts: list[Any] = ["earliest", "latest", 0, 42, 100, time, datetime(2999, 1, 1, tzinfo=timezone.utc)]
    for start in starts:
        for end in (None, 40, 77, 1_000):
            expected = [message.offset for message in own.read(start, end=end)]
            assert [message.offset for message in topic.read(start, end=end)] == expected, (start, end)
    theirs, mine = (pa.Table.from_batches(list(one.read_batches(5))) for one in (own, topic))
    assert mine.combine_chunks().equals(theirs.combine_chunks())


def test_small_batches_come_together_and_large_ones_in_slices(
    owner: frazil.Storage, remote: frazil.RemoteStorage
) -> None:
    topic = remote.topic(TOPIC)
    for number in range(200):
        owner.topic(TOPIC).publish(f"{number}")
    assert len(list(topic.read_batches())) < 10
    owner.topic(TOPIC).publish_many([bytes(2**20)] * 20)
    batches = list(topic.read_batches(200))
    assert len(batches) >= 5
    assert [offset for batch in batches for offset in batch["_offset"].to_pylist()] == list(range(200, 220))


def test_a_follower_has_what_comes_and_ends_when_it_is_closed(remote: frazil.RemoteStorage) -> None:
    topic = remote.topic(TOPIC)
    topic.publish("before")
    reader = topic.read("latest", follow=True)
    found: list[bytes] = []
    seen = threading.Event()

    def follow() -> None:
        for message in reader:
            found.append(message.payload)
            seen.set()

    thread = threading.Thread(target=follow)
    thread.start()
    topic.publish("after")
    assert seen.wait(20)
    reader.close()
    thread.join(20)
    assert not thread.is_alive()
    assert found == [b"after"]


@pytest.mark.parametrize(
    ("call", "fields"),
    [
        (lambda topic: topic.publish(17), {"field"}),
        (lambda topic: topic.publish(bytes(11 * 2**20)), {"size_bytes", "limit_bytes"}),
        (lambda topic: topic.publish_many("one"), set()),
        (lambda topic: topic.publish_many([]), set()),
        (lambda topic: topic.publish_many(rows(1.0)), {"field"}),
        (lambda topic: topic.publish_many(pa.RecordBatch.from_pydict({"_payload": [None]})), {"field"}),
        (lambda topic: topic.read("soon"), set()),
        (lambda topic: topic.read(17), {"topic", "offset", "first", "end"}),
        (lambda topic: topic.read(end=-1), set()),
    ],
)
def test_errors_are_those_of_the_embedded_one(
    owner: frazil.Storage, remote: frazil.RemoteStorage, call: Callable[[Any], Any], fields: set[str]
) -> None:
    raised = []
    for topic in (owner.topic(TOPIC), remote.topic(TOPIC)):
        with pytest.raises(frazil.FrazilError) as error:
            call(topic)
        raised.append(error.value)
    theirs, mine = raised
    assert type(mine) is type(theirs)
    assert mine.message == theirs.message
    assert mine.fields == theirs.fields
    assert set(mine.fields) == fields


def test_topics_are_made_listed_changed_and_deleted(owner: frazil.Storage, remote: frazil.RemoteStorage) -> None:
    with pytest.raises(frazil.TopicNotFound):
        remote.topic(TOPIC, create=False)
    remote.create_topic(TOPIC, retention=frazil.RetentionSettings(bytes=2**20))
    assert owner.topic(TOPIC).log.retention.bytes == 2**20
    remote.set_retention(TOPIC, None)
    assert owner.topic(TOPIC).log.retention.bytes is None
    with pytest.raises(frazil.TopicExists) as exists:
        remote.create_topic(TOPIC)
    assert exists.value.topic == TOPIC
    with pytest.raises(frazil.InvalidName):
        remote.topic("nonsense")
    with pytest.raises(frazil.SchemaMismatch):
        remote.topic(TOPIC, schema=TYPED)
    typed = remote.topic("/weather/readings", schema=TYPED)
    assert remote.topics() == owner.topics() == [TOPIC, "/weather/readings"]
    assert typed.schema is not None
    assert typed.schema.equals(TYPED)
    remote.delete_topic(TOPIC)
    assert owner.topics() == ["/weather/readings"]
    with pytest.raises(frazil.TopicNotFound):
        remote.delete_topic(TOPIC)


def test_a_typed_topic_follows_changes_of_its_schema_on_both_sides(
    owner: frazil.Storage, remote: frazil.RemoteStorage
) -> None:
    topic = remote.topic("/weather/readings", schema=TYPED)
    assert topic.publish_many(rows(1.5, None)) == frazil.OffsetRange(0, 2)
    with pytest.raises(frazil.SchemaMismatch, match="typed topic"):
        topic.publish("x")
    follower = topic.read_batches(follow=True)
    assert next(follower).num_rows == 2
    wider = TYPED.append(pa.field("pascal", pa.int64()))
    owner.change_schema(topic.name, wider)  # not by this client, who learns of it when its batch does not fit
    more = pa.RecordBatch.from_pylist([{"sensor": "b", "celsius": 0.0, "pascal": 7}], schema=wider)
    assert topic.publish_many(more) == frazil.OffsetRange(2, 3)
    after = next(follower)
    assert after["pascal"].to_pylist() == [7]
    assert after["_offset"].to_pylist() == [2]
    follower.close()
    with pytest.raises(frazil.SchemaMismatch, match="'pascal' is missing"):
        topic.publish_many(rows(2.0))
    assert topic.publish_many(more) == frazil.OffsetRange(3, 4)


def test_many_threads_share_batches(owner: frazil.Storage, remote: frazil.RemoteStorage) -> None:
    topic = remote.topic(TOPIC)
    offsets: list[tuple[int, bytes]] = []

    def publish(name: str) -> None:
        for number in range(50):
            payload = f"{name} {number}".encode()
            offsets.append((topic.publish(payload), payload))

    threads = [threading.Thread(target=publish, args=(f"thread {number}",)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(offsets) == [(one.offset, one.payload) for one in owner.topic(TOPIC).read()]
    assert len(offsets) == 800
    (state,) = (owner.topic(TOPIC).producer_state(remote.producer),)
    assert state is not None
    assert state.next_sequence == 800
    assert max(count for _, _, count in state.recent) > 1, "no batch had more than one message"


def test_a_topic_deleted_and_made_again_is_another_one(owner: frazil.Storage, remote: frazil.RemoteStorage) -> None:
    topic = remote.topic(TOPIC)
    topic.publish("old")
    reader = topic.read_batches(follow=True)
    assert next(reader).num_rows == 1
    owner.delete_topic(TOPIC)
    with pytest.raises(frazil.TopicNotFound):
        topic.publish("lost")
    owner.topic(TOPIC).publish("new")
    for call in (lambda: next(reader), lambda: topic.publish("lost too")):
        with pytest.raises(frazil.TopicNotFound, match="another was created"):
            call()
    assert payloads(remote.topic(TOPIC)) == [b"new"]


def test_a_name_has_one_producer_the_last_that_took_it(door: FlightDoor, owner: frazil.Storage) -> None:
    with frazil.connect(door.address, producer="till 1") as first:
        assert first.topic(TOPIC).publish("a") == 0
        with frazil.connect(door.address, producer="till 1") as second:
            assert second.topic(TOPIC).publish("b") == 1
            with pytest.raises(frazil.FrazilError) as refused:
                first.topic(TOPIC).publish("c")
            assert isinstance(refused.value, frazil.ProducerFenced)
            with pytest.raises(frazil.ProducerFenced):
                first.topic(TOPIC).publish("d")
            assert second.topic(TOPIC).publish("e") == 2
    assert payloads(owner.topic(TOPIC)) == [b"a", b"b", b"e"]


def test_a_full_buffer_is_an_answer(door: FlightDoor) -> None:
    with frazil.connect(door.address, buffer_bytes_max=1_000_000) as remote:
        topic = remote.topic(TOPIC)
        assert topic.publish_many([bytes(1_000)] * 2_000) == frazil.OffsetRange(0, 2_000)  # alone it may be larger

        def flood() -> None:
            for _ in range(10_000):
                topic.begin_publish_many([bytes(1_000)] * 300, lambda _: None, None)

        with pytest.raises(frazil.Overloaded) as full:
            flood()
        assert full.value.fields == {"queue": "publish", "limit_bytes": 1_000_000, "retry_after_ms": 10}


def test_a_closed_client_says_so(door: FlightDoor) -> None:
    remote = frazil.connect(door.address)
    topic = remote.topic(TOPIC)
    topic.publish("x")
    remote.close()
    for call in (lambda: topic.publish("y"), topic.stats, remote.topics, topic.read):
        with pytest.raises(frazil.Closed):
            call()


def test_no_server_is_told_with_its_address() -> None:
    with pytest.raises(frazil.OwnerUnreachable, match=r"127\.0\.0\.1:1"):
        frazil.connect("grpc://127.0.0.1:1")
    with pytest.raises(frazil.InvalidInput, match="grpc://host:port"):
        frazil.connect("somewhere")


def test_subscriptions_need_a_broker(remote: frazil.RemoteStorage) -> None:
    with pytest.raises(frazil.InvalidInput, match=r"broker\.enabled"):
        remote.topic(TOPIC).subscribe("cooks")


def test_more_streams_than_the_limit_wait_until_one_ends(owner: frazil.Storage) -> None:
    with (
        flight_door(owner, FlightSettings(port=0, streams_max=1)) as door,
        frazil.connect(door.address, give_up_ms=300) as remote,
    ):
        topic = remote.topic(TOPIC)
        reader = topic.read_batches(follow=True)
        with pytest.raises(frazil.TryLater, match="streams_max = 1"):
            topic.read()
        reader.close()
        assert frazil.connect(door.address).topic(TOPIC).publish("x") == 0


def test_a_server_whose_streams_all_fail_is_given_up(
    owner: frazil.Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("of our own")

    monkeypatch.setattr(numbered_put, "few", broken)
    with (
        flight_door(owner, FlightSettings(port=0)) as door,
        frazil.connect(door.address, give_up_ms=1_000) as remote,
        pytest.raises(frazil.OutcomeUnknown, match="without an answer"),
    ):
        remote.topic(TOPIC).publish("x")
    assert "DoPut failed" in caplog.text


def test_what_was_never_sent_is_told_apart_from_what_has_no_answer(owner: frazil.Storage) -> None:
    with flight_door(owner, FlightSettings(port=0)) as door:
        remote = frazil.connect(door.address, give_up_ms=300)
        topic = remote.topic(TOPIC)
    with pytest.raises(frazil.OwnerUnreachable):
        topic.publish("x")
    remote.close()
