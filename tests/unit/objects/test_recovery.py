"""A log whose folder is gone goes on behind its objects: offsets, numbered producers, append times and columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import frazil
from frazil.core.errors import CorruptLog, ObjectDamaged, ProducerFenced, SequenceForgotten, TopicExists
from frazil.core.sequences import Sent
from frazil.core.settings import RetentionSettings, make_settings
from frazil.core.stored_objects import StoredObject
from frazil.log.folder.adoption import AdoptedLog
from frazil.log.format.frames import pack_mark
from frazil.log.storage import open_storage
from frazil.log.write.producers import Producers, ProducersRecord
from frazil.objects.loading import load_objects
from frazil.objects.reading import name_of
from frazil.objects.recovery import Stated, continuation
from frazil.objects.store import ObjectStore
from frazil.testing import FakeClock
from parts.uploading import upload_log

TOPIC = "/shop/orders"
TYPED = pa.schema([pa.field("value", pa.int64(), nullable=False)])


@pytest.fixture
def storage(tmp_path: Path, clock: FakeClock) -> Iterator[frazil.Storage]:
    with opened(tmp_path / "first", clock) as storage:
        yield storage


@pytest.fixture
def other(tmp_path: Path, clock: FakeClock) -> Iterator[frazil.Storage]:
    with opened(tmp_path / "second", clock) as storage:
        yield storage


def opened(folder: Path, clock: FakeClock) -> frazil.Storage:
    return open_storage(make_settings({"data": str(folder), "wal": {"max_file_size": 256 * 1024}}), clock=clock)


def adopted_of(store: ObjectStore, topic: frazil.Topic, stated: Stated | None = None) -> AdoptedLog:
    found = load_objects(store, topic.log.log_id, None)
    return continuation(store, topic.log.log_id, found.objects, found.end, stated)


def message(number: int) -> bytes:
    return f"{number}:".encode() + b"x" * 10_000


def publish(topic: frazil.Topic, count: int, producers: int = 3) -> None:
    """Publish numbered batches of several producers over several segments."""
    for number in range(count):
        name = f"p{number % producers}"
        state = topic.log.producer_state(name)
        topic.publish_many([message(number)], sent=Sent(name, 0, state.next_sequence if state else 0))


def test_the_log_goes_on_at_the_next_offset(storage: frazil.Storage, other: frazil.Storage, store: ObjectStore) -> None:
    topic = storage.topic(TOPIC)
    publish(topic, 60)
    assert len(upload_log(store, topic.log)) > 5
    taken = other.adopt_topic(TOPIC, adopted_of(store, topic))
    assert taken.log.log_id == topic.log.log_id
    assert (taken.log.first_offset, taken.log.durable_end) == (60, 60)
    assert taken.publish(b"next") == 60
    assert [one.payload for one in taken.read(60)] == [b"next"]


def test_what_producers_sent_before_is_known_and_not_stored_again(
    storage: frazil.Storage, other: frazil.Storage, store: ObjectStore
) -> None:
    topic = storage.topic(TOPIC)
    publish(topic, 60)
    upload_log(store, topic.log)
    states = {name: topic.log.producer_state(name) for name in ("p0", "p1", "p2")}
    record = storage.record(TOPIC).producers
    taken = other.adopt_topic(TOPIC, adopted_of(store, topic, Stated(taken=record)))
    assert {name: taken.log.producer_state(name) for name in states} == states
    assert taken.publish_many([message(59)], sent=Sent("p2", 0, 19)).start == 59
    assert taken.publish_many([message(60)], sent=Sent("p0", 0, 20)).start == 60


def test_a_producer_whose_taking_is_not_known_must_be_opened_again(
    storage: frazil.Storage, other: frazil.Storage, store: ObjectStore
) -> None:
    """Its name may have been given to a client that wrote nothing, so no client may go on by itself."""
    topic = storage.topic(TOPIC)
    publish(topic, 60)
    upload_log(store, topic.log)
    taken = other.adopt_topic(TOPIC, adopted_of(store, topic))
    with pytest.raises(ProducerFenced):
        taken.publish_many([message(60)], sent=Sent("p0", 0, 20))
    with pytest.raises(SequenceForgotten):
        taken.publish_many([message(60)], sent=Sent("silent", 0, 0))
    state = taken.open_producer("p0")
    assert state.next_sequence == 20
    assert taken.publish_many([message(60)], sent=Sent("p0", state.epoch, 20)).start == 60


def test_append_times_never_step_back(
    storage: frazil.Storage, other: frazil.Storage, store: ObjectStore, clock: FakeClock
) -> None:
    topic = storage.topic(TOPIC)
    clock.advance(1_000_000)
    publish(topic, 3)
    newest = [one.append_time for one in topic.read("earliest")][-1]
    upload_log(store, topic.log)
    clock.step_wall(-500_000)
    taken = other.adopt_topic(TOPIC, adopted_of(store, topic))
    taken.publish(b"next")
    assert [one.append_time for one in taken.read(3)] == [newest]


def test_a_typed_topic_has_its_columns_again(
    storage: frazil.Storage, other: frazil.Storage, store: ObjectStore
) -> None:
    topic = storage.topic(TOPIC, schema=TYPED)
    topic.publish_many(pa.record_batch({"value": [1, 2]}, schema=TYPED))
    upload_log(store, topic.log)
    taken = other.adopt_topic(TOPIC, adopted_of(store, topic))
    assert taken.schema == TYPED
    assert taken.publish_many(pa.record_batch({"value": [3]}, schema=TYPED)).start == 2


def test_the_record_of_the_topic_goes_before_what_the_objects_say(
    storage: frazil.Storage, other: frazil.Storage, store: ObjectStore
) -> None:
    topic = storage.topic(TOPIC, schema=TYPED)
    topic.publish_many(pa.record_batch({"value": [1]}, schema=TYPED))
    upload_log(store, topic.log)
    wider = TYPED.append(pa.field("note", pa.string()))
    retention = RetentionSettings(age_ms=5_000_000)
    taken = other.adopt_topic(TOPIC, adopted_of(store, topic, Stated(wider, 77, retention)))
    assert taken.schema == wider
    record = other.record(TOPIC)
    assert (record.created_us, record.retention, record.first_offset) == (77, retention, 1)
    taken.publish_many(pa.record_batch({"value": [2], "note": ["tea"]}, schema=wider))
    assert [batch["value"].to_pylist() for batch in taken.read_batches(1)] == [[2]]


def test_a_log_of_which_nothing_was_uploaded_begins_where_its_fence_says(
    other: frazil.Storage, store: ObjectStore
) -> None:
    taken = other.adopt_topic(TOPIC, continuation(store, "a-log", (), 30))
    assert taken.publish(b"tea") == 30


def test_an_accepted_loss_leaves_a_gap_and_numbered_producers_notice(
    storage: frazil.Storage, other: frazil.Storage, store: ObjectStore
) -> None:
    topic = storage.topic(TOPIC)
    publish(topic, 6)
    objects = upload_log(store, topic.log)
    taken = other.adopt_topic(TOPIC, continuation(store, topic.log.log_id, objects, 10))
    assert taken.publish(b"tea") == 10
    assert taken.open_producer("p0").next_sequence == 2


def test_an_adopted_log_goes_on_after_a_restart(
    storage: frazil.Storage, store: ObjectStore, clock: FakeClock, tmp_path: Path
) -> None:
    topic = storage.topic(TOPIC)
    publish(topic, 9)
    upload_log(store, topic.log)
    log = adopted_of(store, topic, Stated(taken=ProducersRecord({}, {}, 0)))
    with opened(tmp_path / "third", clock) as other:
        other.adopt_topic(TOPIC, log)
    with opened(tmp_path / "third", clock) as other:
        again = other.topic(TOPIC, create=False)
        assert (again.log.first_offset, again.log.durable_end) == (9, 9)
        assert again.publish_many([message(9)], sent=Sent("p0", 0, 3)).start == 9
        assert other.budget.used_bytes > 0
    assert [path.name for path in (tmp_path / "third" / "log").iterdir() if path.name == "~adopting"] == []


def test_a_topic_that_exists_is_not_replaced(
    storage: frazil.Storage, other: frazil.Storage, store: ObjectStore
) -> None:
    topic = storage.topic(TOPIC)
    publish(topic, 3)
    upload_log(store, topic.log)
    other.topic(TOPIC).publish(b"mine")
    with pytest.raises(TopicExists):
        other.adopt_topic(TOPIC, adopted_of(store, topic))
    assert [one.payload for one in other.topic(TOPIC).read("earliest")] == [b"mine"]


def test_a_folder_that_knows_of_later_rows_of_the_log_refuses_to_lose_them(
    storage: frazil.Storage, store: ObjectStore, tmp_path: Path
) -> None:
    topic = storage.topic(TOPIC)
    publish(topic, 3)
    upload_log(store, topic.log)
    publish(topic, 3)
    storage.maintain()
    log = adopted_of(store, topic)
    with pytest.raises(CorruptLog, match="up to offset 6"):
        storage._catalog.adopt(topic.log.name, log, storage.settings.wal, storage.budget)


def test_what_a_crash_left_at_the_place_of_a_topic_is_cleared(
    storage: frazil.Storage, other: frazil.Storage, store: ObjectStore, tmp_path: Path
) -> None:
    topic = storage.topic(TOPIC)
    publish(topic, 3)
    upload_log(store, topic.log)
    place = tmp_path / "second" / "log" / "shop" / "orders"
    place.mkdir(parents=True)
    (place / "topic.json.new").write_bytes(b"half")
    assert other.adopt_topic(TOPIC, adopted_of(store, topic)).publish(b"tea") == 3
    assert not (place / "topic.json.new").exists()


class TestDamagedObjects:
    """The last object decides where producers go on, so it is read in full."""

    def last(self, storage: frazil.Storage, store: ObjectStore) -> tuple[frazil.Topic, StoredObject]:
        topic = storage.topic(TOPIC)
        publish(topic, 9)
        return topic, upload_log(store, topic.log, 30_000)[-1]

    def replaced(self, store: ObjectStore, one: StoredObject, content: bytes) -> StoredObject:
        store.delete([name_of(one)])
        etag = store.create(name_of(one), content)
        return dataclasses.replace(one, etag=etag, size_bytes=len(content))

    def refused(self, store: ObjectStore, one: StoredObject, match: str) -> None:
        with pytest.raises(ObjectDamaged, match=match) as caught:
            continuation(store, one.log_id, (one,), one.end)
        assert caught.value.fields["path"] == name_of(one)

    def test_a_missing_one_is_named(self, storage: frazil.Storage, store: ObjectStore) -> None:
        _, one = self.last(storage, store)
        store.delete([name_of(one)])
        self.refused(store, one, "missing")

    def test_a_changed_byte_is_named(self, storage: frazil.Storage, store: ObjectStore) -> None:
        _, one = self.last(storage, store)
        content = bytearray(store.get(name_of(one)))
        content[-100] ^= 1
        self.refused(store, self.replaced(store, one, bytes(content)), "checksum does not match")

    def test_a_whole_object_with_another_checksum_than_its_manifest_is_named(
        self, storage: frazil.Storage, store: ObjectStore
    ) -> None:
        _, one = self.last(storage, store)
        self.refused(store, dataclasses.replace(one, crc=7), "manifest")

    def test_a_cut_one_is_named(self, storage: frazil.Storage, store: ObjectStore) -> None:
        _, one = self.last(storage, store)
        self.refused(store, self.replaced(store, one, store.get(name_of(one))[:-24]), "not with a mark")

    def test_one_that_ends_elsewhere_is_named(self, storage: frazil.Storage, store: ObjectStore) -> None:
        _, one = self.last(storage, store)
        content = store.get(name_of(one))[:-24] + pack_mark(one.end)
        self.refused(store, dataclasses.replace(self.replaced(store, one, content), end=one.end + 1), "ends at offset")

    def test_one_of_another_log_is_named(self, storage: frazil.Storage, store: ObjectStore) -> None:
        _, one = self.last(storage, store)
        foreign = dataclasses.replace(one, log_id="another")
        store.create(name_of(foreign), store.get(name_of(one)))
        self.refused(store, dataclasses.replace(foreign, etag=None), "belongs to log")


def test_unknown_takings_get_epochs_above_all_that_they_may_have_had() -> None:
    producers = Producers()
    producers.store(Sent("p", 5, 0), 1, 0)
    log = AdoptedLog("a-log", 1, None, producers, 1, 1)
    record = log.producers_record
    assert record.epochs["p"] > 5
    assert record.floor > record.epochs["p"]
