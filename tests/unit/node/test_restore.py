"""A data folder whose disk is lost is made again from the objects of its logs, and goes on."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import frazil
from frazil.cli.main import main
from frazil.core.disk import LocalDisk
from frazil.core.errors import InvalidSettings, ObjectDamaged, ProducerFenced, RestoreRefused
from frazil.core.names import TopicName
from frazil.core.sequences import Sent
from frazil.core.settings import AckLevel, Settings, make_settings
from frazil.log.folder.identity import folder_id
from frazil.log.storage import open_storage
from frazil.log.topic_log import TopicLog
from frazil.meta.broker_keys import OWNER, PROGRESS
from frazil.meta.sqlite import SqliteStore
from frazil.meta.topic_records import LogIdentity, TopicIdentity, packed_schema, topic_record_key
from frazil.node.opening import Histories, open_to_move
from frazil.node.restore.restore import RESTORING_FILE, restore
from frazil.node.tiers.objects import object_store_of
from frazil.objects.known import ObjectsOfLogs
from frazil.objects.names import ObjectName
from frazil.objects.packing import Fence, pack_fence
from frazil.objects.store import ObjectStore
from parts.in_process import MoverHere
from parts.owner_uploads import with_objects
from parts.uploading import upload_log

ORDERS, READINGS = "/shop/orders", "/shop/readings"
TYPED = pa.schema([pa.field("value", pa.int64(), nullable=False)])


@pytest.fixture
def place(tmp_path: Path) -> dict[str, object]:
    """Where the objects and the tables are: on another disk than the data folder."""
    return {
        "objects": {"enabled": True, "store": {"type": "local", "path": str(tmp_path / "bucket")}},
        "catalog": {"type": "sql", "uri": f"sqlite:///{tmp_path / 'catalog.db'}"},
        "object_store": {"type": "local", "path": str(tmp_path / "lake")},
        "wal": {"max_file_size": 64 * 1024, "sync_mode": "none"},
    }


@pytest.fixture
def lost(tmp_path: Path, place: dict[str, object]) -> Settings:
    return make_settings({"data": str(tmp_path / "lost"), **place})


@pytest.fixture
def fresh(tmp_path: Path, place: dict[str, object]) -> Settings:
    return make_settings({"data": str(tmp_path / "fresh"), **place})


@pytest.fixture
def store(lost: Settings) -> ObjectStore:
    return object_store_of(lost)


@contextlib.contextmanager
def opened(settings: Settings) -> Iterator[frazil.Storage]:
    """A folder as its owner opens it: its logs have their objects and tables."""
    objects, histories = ObjectsOfLogs(object_store_of(settings)), Histories(settings)

    def colder_of(log: TopicLog):  # type: ignore[no-untyped-def]
        return with_objects(histories(log), log, objects.of(log.log_id))

    with open_storage(settings, colder_of=colder_of) as storage:
        yield storage


def message(number: int) -> bytes:
    return f"{number}:".encode() + b"x" * 1_000


def publish(topic: frazil.Topic, count: int) -> None:
    for _ in range(count):
        state = topic.producer_state("till")
        next_sequence = state.next_sequence if state else 0
        topic.publish_many([message(next_sequence)], sent=Sent("till", 0, next_sequence))


@pytest.fixture
def log_ids(lost: Settings, store: ObjectStore) -> dict[str, str]:
    """Two topics, uploaded; then the disk is lost."""
    with opened(lost) as storage:
        orders, readings = storage.topic(ORDERS), storage.topic(READINGS, schema=TYPED)
        publish(orders, 100)
        readings.publish_many(pa.record_batch({"value": [1, 2, 3]}, schema=TYPED))
        upload_log(store, orders.log, 16 * 1024)
        upload_log(store, readings.log)
        ids = {topic.name: topic.log.log_id for topic in (orders, readings)}
    assert lost.data is not None
    shutil.rmtree(lost.data)
    return ids


def payloads(topic: frazil.Topic, start: int | str = "earliest") -> list[bytes]:
    return [one.payload for one in topic.read(start)]


def test_all_topics_are_there_again_with_all_uploaded_rows(fresh: Settings, log_ids: dict[str, str]) -> None:
    done = restore(fresh)
    assert [(one.topic, one.log_id, one.end) for one in done.logs] == [
        (ORDERS, log_ids[ORDERS], 100),
        (READINGS, log_ids[READINGS], 3),
    ]
    assert done.left_out == ()
    with opened(fresh) as storage:
        assert payloads(storage.topic(ORDERS)) == [message(number) for number in range(100)]
        readings = storage.topic(READINGS)
        assert readings.schema == TYPED
        assert [batch["value"].to_pylist() for batch in readings.read_batches("earliest")] == [[1, 2, 3]]


def test_publishing_goes_on_at_the_next_offset_and_stores_no_batch_twice(
    fresh: Settings, log_ids: dict[str, str]
) -> None:
    restore(fresh)
    with opened(fresh) as storage:
        orders = storage.topic(ORDERS)
        with pytest.raises(ProducerFenced):  # of a client from before
            orders.publish_many([message(99)], sent=Sent("till", 0, 99))
        state = orders.open_producer("till")
        assert state.next_sequence == 100
        assert orders.publish_many([message(100)], sent=Sent("till", state.epoch, 100)).start == 100
        assert payloads(orders, 98) == [message(98), message(99), message(100)]


def test_the_table_goes_on_from_its_token_exactly_once(lost: Settings, fresh: Settings, store: ObjectStore) -> None:
    with opened(lost) as storage:
        orders = storage.topic(ORDERS)
        publish(orders, 40)
        assert MoverHere(lost, storage).errors() == {ORDERS: None}
        publish(orders, 60)
        upload_log(store, orders.log, 16 * 1024)
    shutil.rmtree(str(lost.data))
    (one,) = restore(fresh).logs
    assert (one.table_end, one.objects_end, one.end) == (40, 100, 100)
    with opened(fresh) as storage:
        storage.topic(ORDERS).publish(message(100))
        mover = MoverHere(fresh, storage)
        assert mover.errors() == {ORDERS: None}
        assert [(row["_offset"], row["_payload"]) for row in mover.rows(ORDERS)] == [
            (number, message(number)) for number in range(101)
        ]
        assert mover.errors() == {ORDERS: None}


def test_a_log_goes_on_behind_its_table_where_the_table_has_more_than_the_objects(
    lost: Settings, fresh: Settings, store: ObjectStore
) -> None:
    with opened(lost) as storage:
        orders = storage.topic(ORDERS)
        publish(orders, 40)
        upload_log(store, orders.log, 16 * 1024)
        publish(orders, 20)
        assert MoverHere(lost, storage).errors() == {ORDERS: None}
        newest = [one.append_time for one in orders.read(59)]
    shutil.rmtree(str(lost.data))
    (one,) = restore(fresh).logs
    assert (one.objects_end, one.table_end, one.end) == (40, 60, 60)
    with opened(fresh) as storage:
        orders = storage.topic(ORDERS)
        with pytest.raises(frazil.FrazilError):  # whether its batch is in the table is not known
            orders.publish_many([message(40)], sent=Sent("till", 0, 40))
        assert orders.publish(message(60)) == 60
        assert payloads(orders) == [message(number) for number in range(61)]
        assert next(orders.read(60)).append_time >= newest[0]
        mover = MoverHere(fresh, storage)
        assert mover.errors() == {ORDERS: None}
        assert len(mover.rows(ORDERS)) == 61


def test_a_topic_that_is_acknowledged_by_the_store_stays_one_and_loses_nothing(lost: Settings, fresh: Settings) -> None:
    with open_to_move(lost, moves=False) as storage:
        topic = storage.create_topic(ORDERS, ack="object")
        assert [topic.publish(message(number)) for number in range(20)] == list(range(20))
    shutil.rmtree(str(lost.data))
    (one,) = restore(fresh).logs
    assert (one.topic, one.end) == (ORDERS, 20)
    with open_to_move(fresh, moves=False) as storage:
        assert storage.record(ORDERS).ack is AckLevel.OBJECT
        topic = storage.topic(ORDERS, create=False)
        assert topic.publish(message(20)) == 20
        assert payloads(topic) == [message(number) for number in range(21)]


def test_a_dry_run_changes_nothing(fresh: Settings, log_ids: dict[str, str]) -> None:
    planned = restore(fresh, dry_run=True)
    assert planned.dry_run
    assert [one.topic for one in planned.logs] == [ORDERS, READINGS]
    assert fresh.data is not None
    assert not (fresh.data / "log").exists()
    assert restore(fresh).logs == planned.logs


def test_a_folder_with_topics_is_refused(fresh: Settings, log_ids: dict[str, str]) -> None:
    with opened(fresh) as storage:
        storage.topic("/shop/mine").publish(b"tea")
    for dry_run in (True, False):
        with pytest.raises(RestoreRefused, match="has topics, for example /shop/mine"):
            restore(fresh, dry_run=dry_run)


def test_an_interrupted_call_is_continued(
    fresh: Settings, log_ids: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    adopt = frazil.Storage.adopt_topic

    def fails(storage: frazil.Storage, name: str, log: object) -> frazil.Topic:
        if name == READINGS:
            raise KeyboardInterrupt
        return adopt(storage, name, log)  # type: ignore[arg-type]

    monkeypatch.setattr(frazil.Storage, "adopt_topic", fails)
    with pytest.raises(KeyboardInterrupt):
        restore(fresh)
    monkeypatch.undo()
    assert (fresh.log_folder / RESTORING_FILE).exists()
    done = restore(fresh)
    assert [(one.topic, one.was_there) for one in done.logs] == [(ORDERS, True), (READINGS, False)]
    assert not (fresh.log_folder / RESTORING_FILE).exists()
    with opened(fresh) as storage:
        assert storage.topics() == [ORDERS, READINGS]
    with pytest.raises(RestoreRefused):
        restore(fresh)


def test_a_topic_made_meanwhile_is_not_replaced(
    fresh: Settings, log_ids: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frazil.Storage, "adopt_topic", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        restore(fresh)
    monkeypatch.undo()
    with opened(fresh) as storage:
        storage.topic(ORDERS).publish(b"another")
    with pytest.raises(RestoreRefused, match="as another log"):
        restore(fresh)


class TestWhichLogIsWhose:
    def put_fence(self, store: ObjectStore, log_id: str, at: int, topic: str) -> None:
        fence = Fence(2, "old", at, "a claim", "", topic)
        store.create(str(ObjectName(log_id, 1, at)), pack_fence(at, fence))

    def test_two_logs_of_one_topic_are_refused_until_one_is_left_out(
        self, lost: Settings, fresh: Settings, store: ObjectStore, log_ids: dict[str, str]
    ) -> None:
        with opened(lost) as storage:
            topic = storage.topic(ORDERS)
            topic.publish(b"made again")
            upload_log(store, topic.log)
            other = topic.log.log_id
        with pytest.raises(RestoreRefused, match="--leave-out") as refused:
            restore(fresh)
        assert {other, log_ids[ORDERS]} <= set(str(refused.value).replace(":", "").replace(",", "").split())
        restore(fresh, leave_out=[log_ids[ORDERS]])
        with opened(fresh) as storage:
            assert payloads(storage.topic(ORDERS)) == [b"made again"]

    def test_a_log_that_names_no_topic_is_refused_by_its_id(
        self, fresh: Settings, store: ObjectStore, log_ids: dict[str, str]
    ) -> None:
        store.create(str(ObjectName("a-nameless-log", 0, 0)), pack_fence(0, Fence(1, "old", 0, "a claim")))
        done = restore(fresh, dry_run=True)
        assert [(one.log_id, one.topic, one.reason) for one in done.left_out] == [
            ("a-nameless-log", None, "none of its rows was uploaded")
        ]

    def test_what_an_interrupted_deletion_has_left_is_no_topic(
        self, fresh: Settings, store: ObjectStore, log_ids: dict[str, str]
    ) -> None:
        """The first fence goes first, the rest in any order: a hole is no damage there."""
        names = [info.name for info in store.walk(f"{log_ids[ORDERS]}/")]
        store.delete([names[0], names[3]])
        done = restore(fresh)
        assert [one.topic for one in done.logs] == [READINGS]
        (left_out,) = done.left_out
        assert left_out.log_id == log_ids[ORDERS]
        assert "deleted" in left_out.reason

    def test_the_newest_fence_names_the_topic(
        self, fresh: Settings, store: ObjectStore, log_ids: dict[str, str]
    ) -> None:
        self.put_fence(store, log_ids[ORDERS], 100, "/shop/renamed")
        assert [one.topic for one in restore(fresh, dry_run=True).logs] == [READINGS, "/shop/renamed"]
        (bad,) = [one for one in log_ids.values() if one != log_ids[ORDERS]]
        self.put_fence(store, bad, 3, "no name")
        with pytest.raises(RestoreRefused, match=f"{bad} name the topic 'no name'"):
            restore(fresh, dry_run=True)


class TestRecords:
    """A metadata store that was not on the lost disk says which topics there are."""

    @pytest.fixture
    def meta(self, fresh: Settings) -> Iterator[SqliteStore]:
        """A file stands for etcd."""
        assert fresh.data is not None
        with contextlib.closing(SqliteStore(fresh.data / "~meta.db")) as store:
            yield store

    def put(self, meta: SqliteStore, topic: str, **identity: object) -> None:
        name = TopicName.parse(topic)
        record = TopicIdentity(name, {name: LogIdentity(**identity)}, "the-folder")  # type: ignore[arg-type]
        meta.put_all({topic_record_key(name): record.encode()})

    def test_they_go_before_what_objects_say(self, fresh: Settings, meta: SqliteStore, log_ids: dict[str, str]) -> None:
        wider = TYPED.append(pa.field("note", pa.string()))
        kept = {"age_ms": 7_000_000}
        self.put(
            meta,
            READINGS,
            log_id=log_ids[READINGS],
            created_us=5,
            schema=packed_schema(wider),
            retention=kept,
            ack="memory",
        )
        self.put(meta, "/shop/quiet", log_id="a-quiet-log", created_us=6)
        done = restore(fresh)
        assert [(one.topic, one.end) for one in done.logs] == [("/shop/quiet", 0), (READINGS, 3)]
        assert [(one.log_id, one.topic) for one in done.left_out] == [(log_ids[ORDERS], ORDERS)]
        with opened(fresh) as storage:
            assert storage.topic(READINGS).schema == wider
            record = storage.record(READINGS)
            assert (record.created_us, record.retention) == (5, frazil.RetentionSettings(age_ms=7_000_000))
            assert record.ack is AckLevel.MEMORY
            assert storage.topic("/shop/quiet").log.log_id == "a-quiet-log"

    def test_the_new_folder_takes_the_place_of_the_lost_one(
        self, fresh: Settings, meta: SqliteStore, log_ids: dict[str, str]
    ) -> None:
        for name, log_id in log_ids.items():
            self.put(meta, name, log_id=log_id, created_us=1)
        meta.put_all({OWNER: json.dumps({"folder": "the-folder", "path": "/gone", "process": {}}).encode()})
        restore(fresh)
        assert fresh.data is not None
        assert folder_id(LocalDisk(), fresh.data) == "the-folder"

    def test_cursors_beyond_the_end_are_set_back_to_it(
        self, fresh: Settings, meta: SqliteStore, log_ids: dict[str, str]
    ) -> None:
        """Rows that were not uploaded are lost; those that get their offsets must be delivered."""
        for name, log_id in log_ids.items():
            self.put(meta, name, log_id=log_id, created_us=1)
        keys = {name: f"{PROGRESS}{name}/shop/orders" for name in ("ahead", "behind")}
        meta.put_all({keys["ahead"]: b'{"offset": 130, "acked": [[140, 150]]}', keys["behind"]: b'{"offset": 7}'})
        restore(fresh)
        found = {name: meta.get(key) for name, key in keys.items()}
        assert {name: json.loads(one.value)["offset"] for name, one in found.items() if one is not None} == {
            "ahead": 100,
            "behind": 7,
        }


def test_damaged_objects_are_refused_by_name(fresh: Settings, store: ObjectStore, log_ids: dict[str, str]) -> None:
    names = [one.name for one in store.walk(f"{log_ids[ORDERS]}/")]
    content = store.get(names[3])
    store.delete([names[3]])
    store.create(names[3], content[:-30])
    with pytest.raises(ObjectDamaged) as refused:
        restore(fresh)
    assert refused.value.fields["path"] == names[3]
    assert not (fresh.log_folder / RESTORING_FILE).exists()


def test_without_objects_there_is_nothing_to_restore_from(fresh: Settings) -> None:
    with pytest.raises(InvalidSettings, match=r"objects\.enabled"):
        restore(make_settings({"data": str(fresh.data)}))
    assert restore(fresh).logs == ()


class TestVerb:
    @pytest.fixture
    def config(self, fresh: Settings, tmp_path: Path) -> str:
        path = tmp_path / "frazil.yaml"
        store = {"enabled": True, "store": {"type": "local", "path": str(tmp_path / "bucket")}}
        path.write_text(json.dumps({"data": str(fresh.data), "objects": store}))
        return str(path)

    def test_it_prints_a_table_or_json(
        self, config: str, log_ids: dict[str, str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["restore", "--config", config, "--dry-run", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["dry_run"] is True
        assert [(one["topic"], one["end"]) for one in told["logs"]] == [(ORDERS, 100), (READINGS, 3)]
        assert main(["restore", "--config", config, "--leave-out", log_ids[READINGS]]) == 0
        text = capsys.readouterr()
        assert ORDERS in text.out
        assert READINGS not in text.out
        assert "restored 1 log" in text.out + text.err
        assert main(["restore", "--config", config]) == 1
        assert "has topics" in capsys.readouterr().err
