"""Every reader finds rows in objects that the files no longer have and the table does not have yet."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from harmed_objects import forged_object, harm
from tiers import FLOOR, NAME, payload, publish, remove_what_the_table_has

import frazil
from frazil.core.credentials import NO_CREDENTIALS
from frazil.core.disk import LocalDisk
from frazil.core.errors import ObjectDamaged, ObjectStoreUnavailable
from frazil.core.offsets import OffsetRange
from frazil.core.settings import FlightSettings, Settings, make_settings
from frazil.core.stored_objects import StoredObject
from frazil.doors.flight.door import flight_door
from frazil.lake.read.history import TableHistories
from frazil.log.folder.layout import ENDS_FILE
from frazil.log.folder.ownership import published_addresses
from frazil.log.format.records import write_record
from frazil.log.info import LogInfo, LogList, as_json, from_json, info_of
from frazil.log.read.positions import next_offset
from frazil.log.storage import open_storage
from frazil.log.topic_log import TopicLog
from frazil.meta.sqlite import SqliteStore
from frazil.node.movers.accepting import accept_topic
from frazil.node.opening import Histories, open_to_move
from frazil.node.tiers.logs import FileView, LogTier, read_anywhere
from frazil.node.tiers.objects import object_store_of, task_objects
from frazil.node.verify.verify import verify
from frazil.objects.known import ObjectsOfLogs
from frazil.objects.manifests import Manifests
from frazil.objects.reading import name_of
from frazil.pipeline.source.options import parse_options
from frazil.pipeline.source.planning import looking
from frazil.testing import FakeClock
from parts.every_reader import EveryReader
from parts.in_process import MoverHere
from parts.moving import HandMover
from parts.owner_uploads import with_objects
from parts.uploading import upload_log

TABLE_END, END = 1_500, 5_000
LOG_FACES = ("embedded", "spark", "sql")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    wal = {"max_file_size": 64 * 1024, "cache_bytes": 256 * 1024}
    return make_settings({"data": tmp_path / "data", "wal": wal, "objects": {"enabled": True}})


@pytest.fixture
def config(settings: Settings, tmp_path: Path) -> Path:
    path = tmp_path / "frazil.yaml"
    path.write_text(f"data: {settings.data}\nobjects: {{enabled: true}}\n")
    return path


@pytest.fixture
def objects(settings: Settings) -> Iterator[ObjectsOfLogs]:
    assert settings.data is not None
    with contextlib.closing(SqliteStore(settings.data / "~meta.db")) as meta:
        yield ObjectsOfLogs(object_store_of(settings), Manifests(meta))


@pytest.fixture
def storage(settings: Settings, objects: ObjectsOfLogs) -> Iterator[frazil.Storage]:
    histories = Histories(settings)

    def colder_of(log: TopicLog):  # type: ignore[no-untyped-def]
        return with_objects(histories(log), log, objects.of(log.log_id))

    with open_storage(settings, colder_of=colder_of, guards_of=lambda: [FLOOR]) as storage:
        yield storage


@pytest.fixture
def topic(storage: frazil.Storage, mover: HandMover, objects: ObjectsOfLogs) -> frazil.Topic:
    """The table has the oldest rows, objects most of the rest, the files the newest."""
    topic = storage.topic(NAME)
    publish(topic, 4_000)
    mover.move(topic, TABLE_END)
    assert objects.manifests is not None
    objects.manifests.put(upload_log(objects.store, topic.log, 20_000))
    objects.of(topic.log.log_id).refresh()
    remove_what_the_table_has(storage, topic, 3_500)
    publish(topic, 1_000)
    assert TABLE_END < topic.log.first_offset <= 3_500
    return topic


def everywhere(start: int = 0, end: int = END) -> list[tuple[int, bytes]]:
    return [(offset, payload(offset)) for offset in range(start, end)]


@pytest.mark.parametrize("start", [0, 1_400, TABLE_END, 2_003, 4_500])
@pytest.mark.parametrize("face", LOG_FACES)
def test_every_reader_has_all_rows(
    settings: Settings, topic: frazil.Topic, config: Path, face: str, start: int
) -> None:
    readers = EveryReader(settings, topic, config)
    assert readers.rows(face, start) == everywhere(start)


class TestReadOnly:
    """A process that shares catalog and store with the owner, and nothing else."""

    @pytest.fixture
    def node(self, settings: Settings, topic: frazil.Topic) -> Iterator[frazil.ReadOnlyStorage]:
        assert settings.data is not None
        elsewhere = make_settings(
            {
                "data": None,
                "catalog": {"type": "sql", "uri": f"sqlite:///{settings.data / 'catalog.db'}"},
                "object_store": {"type": "local", "path": settings.data / "warehouse"},
                "objects": {"enabled": True, "store": {"type": "local", "path": settings.data / "objects"}},
                "reader": {"poll_interval_ms": 20},
            }
        )
        with frazil.open_read_only(elsewhere) as node:
            yield node

    @pytest.mark.parametrize("start", [0, 700, TABLE_END, 2_003, 3_999])
    def test_it_reads_on_in_objects_behind_the_table(self, node: frazil.ReadOnlyStorage, start: int) -> None:
        found = [(one.offset, one.payload) for one in node.topic(NAME).read(start)]
        assert found == everywhere(start, 4_000)

    def test_rows_are_found_by_time_in_objects(self, node: frazil.ReadOnlyStorage, topic: frazil.Topic) -> None:
        for offset in (700, 2_003, 3_990):
            wanted = next(topic.read(offset)).append_time
            assert next(node.topic(NAME).read(wanted)).append_time == wanted

    def test_it_has_the_same_columns_behind_the_table(self, node: frazil.ReadOnlyStorage) -> None:
        schemas = {batch.schema for batch in node.topic(NAME).read_batches()}
        assert len(schemas) == 1

    def test_a_follower_gets_what_is_uploaded_while_it_waits(
        self, node: frazil.ReadOnlyStorage, topic: frazil.Topic, objects: ObjectsOfLogs
    ) -> None:
        follower = node.topic(NAME).read(3_998, follow=True)
        assert [next(follower).offset for _ in range(2)] == [3_998, 3_999]
        (held,) = [one for one in objects.of(topic.log.log_id).load().all() if one.end == 4_000]
        upload_log(objects.store, topic.log, 20_000, after=held.end)
        assert [next(follower).offset for _ in range(1_000)] == list(range(4_000, END))

    def test_objects_that_retention_removed_meanwhile_are_read_from_the_table(
        self, node: frazil.ReadOnlyStorage, objects: ObjectsOfLogs, topic: frazil.Topic, mover: HandMover
    ) -> None:
        reader = node.topic(NAME).read(0)
        assert next(reader).offset == 0
        mover.move(topic, 3_000)
        known = objects.of(topic.log.log_id).load().remove_below(2_900)
        objects.store.delete(name_of(one) for one in known)
        assert [one.offset for one in reader] == list(range(1, 4_000))

    def test_a_damaged_object_is_refused_by_name(
        self, node: frazil.ReadOnlyStorage, objects: ObjectsOfLogs, topic: frazil.Topic
    ) -> None:
        one = objects.of(topic.log.log_id).load().at(2_500)
        assert one is not None
        harm(objects, one, "changed")
        with pytest.raises(ObjectDamaged) as refused:
            list(node.topic(NAME).read(TABLE_END))
        assert refused.value.fields["path"] == name_of(one)


@pytest.mark.parametrize("face", LOG_FACES)
def test_manifests_that_were_wiped_are_not_missed(
    settings: Settings, topic: frazil.Topic, config: Path, objects: ObjectsOfLogs, face: str
) -> None:
    assert objects.manifests is not None
    objects.manifests.remove_log(topic.log.log_id)
    objects.of(topic.log.log_id).refresh()
    assert EveryReader(settings, topic, config).rows(face) == everywhere()


def test_the_mover_moves_rows_whose_files_are_gone(
    settings: Settings, storage: frazil.Storage, topic: frazil.Topic
) -> None:
    mover = MoverHere(settings, storage)
    assert mover.errors() == {NAME: None}
    moved = [(row["_offset"], row["_payload"]) for row in mover.rows(NAME)]
    assert moved == everywhere()
    assert mover.errors() == {NAME: None}


def test_a_task_without_files_and_owner_reads_objects_from_their_store(settings: Settings, topic: frazil.Topic) -> None:
    info = info_of(topic.log, None)
    wanted = OffsetRange(1_801, 3_777)
    objects = task_objects(settings, info.objects, wanted)
    place = (None, NAME, info.log_id, (), wanted, topic.log.schema, None, NO_CREDENTIALS)
    found = [offset for batch in read_anywhere(*place, objects) for offset in batch.column("_offset").to_pylist()]
    assert found == list(range(1_801, 3_777))
    with pytest.raises(frazil.FrazilError, match="no owner to ask"):
        list(read_anywhere(*place))


def test_the_store_s_secrets_are_in_no_text_of_a_task(topic: frazil.Topic, settings: Settings) -> None:
    store = {"type": "s3", "bucket": "b", "access_key_id": "an-id", "secret_access_key": "a-secret"}
    secret = make_settings({"data": settings.data, "objects": {"enabled": True, "store": store}})
    info = info_of(topic.log, None)
    assert "a-secret" not in repr(task_objects(secret, info.objects, OffsetRange(0, END)))


def test_rows_are_found_by_time_in_objects(settings: Settings, topic: frazil.Topic) -> None:
    view = FileView(settings)
    (info,) = view.logs()
    tier = LogTier(view, info)
    extent = tier.extent()
    assert (extent.start, extent.end) == (0, END)
    for offset in (1_600, 2_750, 4_321):
        found = tier.find(int(next(topic.read(offset)).append_time.timestamp() * 1e6))
        assert found is not None
        assert next(topic.read(found)).append_time == next(topic.read(offset)).append_time


def test_what_an_owner_tells_of_its_objects_travels(topic: frazil.Topic) -> None:
    info = info_of(topic.log, None)
    assert len(info.objects) > 10
    told = from_json(as_json(info))
    assert [(one.epoch, one.range, one.etag) for one in told.objects] == [
        (one.epoch, one.range, one.etag) for one in info.objects
    ]
    assert told.held_from == info.held_from == 0 < info.first_offset
    assert from_json({key: value for key, value in as_json(info).items() if key != "objects"}).objects == ()


class TestDamaged:
    @pytest.fixture
    def damaged(self, topic: frazil.Topic, objects: ObjectsOfLogs) -> StoredObject:
        """One with rows that are nowhere else."""
        found = objects.of(topic.log.log_id).load().at(2_500)
        assert found is not None
        return found

    @pytest.fixture(params=["missing", "changed", "cut"])
    def damage(self, request: pytest.FixtureRequest, damaged: StoredObject, objects: ObjectsOfLogs) -> None:
        harm(objects, damaged, request.param)

    @pytest.mark.usefixtures("damage")
    @pytest.mark.parametrize("face", LOG_FACES)
    def test_every_reader_refuses_it_by_name(
        self, settings: Settings, topic: frazil.Topic, config: Path, damaged: StoredObject, face: str
    ) -> None:
        with pytest.raises(frazil.FrazilError) as refused:
            EveryReader(settings, topic, config).rows(face)
        assert name_of(damaged) in str(refused.value)

    @pytest.mark.usefixtures("damage")
    def test_the_mover_reports_it_by_name_and_moves_nothing(
        self, settings: Settings, storage: frazil.Storage, topic: frazil.Topic, damaged: StoredObject
    ) -> None:
        mover = MoverHere(settings, storage)
        error = mover.errors()[NAME]
        assert error is not None
        assert name_of(damaged) in error
        assert max(row["_offset"] for row in mover.rows(NAME)) < damaged.end


class TestProof:
    def test_rows_in_objects_are_accounted(self, settings: Settings, topic: frazil.Topic, config: Path) -> None:
        proof = EveryReader(settings, topic, config).proof()
        assert proof.problems == []
        assert (proof.end, proof.in_table, proof.in_log) == (END, TABLE_END, END - TABLE_END)
        assert proof.in_objects == 4_000

    @pytest.mark.parametrize("offset", [700, 2_500, 3_990])
    @pytest.mark.parametrize("damage", ["missing", "cut", "changed"])
    def test_a_damaged_object_fails_it_by_name_wherever_else_its_rows_are(
        self,
        settings: Settings,
        topic: frazil.Topic,
        config: Path,
        objects: ObjectsOfLogs,
        offset: int,
        damage: str,
    ) -> None:
        """Rows 700 are in the table too, rows 2500 nowhere else, rows 3990 in files too."""
        one = objects.of(topic.log.log_id).load().at(offset)
        assert one is not None
        harm(objects, one, damage)
        proof = EveryReader(settings, topic, config).proof()
        assert not proof.proven
        assert any(name_of(one) in problem.detail for problem in proof.problems)

    def test_a_store_that_goes_away_meanwhile_hides_no_damage(
        self, storage: frazil.Storage, topic: frazil.Topic, settings: Settings, objects: ObjectsOfLogs
    ) -> None:
        """What the owner tells then has no objects, as if retention had removed them."""
        one = objects.of(topic.log.log_id).load().at(3_990)  # the files have its rows too
        assert one is not None
        harm(objects, one, "changed")
        told = info_of(topic.log, None)
        answers = iter([told, told])

        def ask() -> LogInfo:
            return next(answers, replace(told, objects=(), objects_problem="503 Slow Down"))

        view, history = FileView(settings), TableHistories(settings).of(topic.log.name, topic.log.log_id)
        proof = verify(ask, view.read, history, lambda _: None, view.read_objects)
        assert any(name_of(one) in problem.detail for problem in proof.problems)

    def test_an_object_with_other_rows_than_the_files_fails_it(
        self, settings: Settings, topic: frazil.Topic, config: Path, objects: ObjectsOfLogs
    ) -> None:
        one = objects.of(topic.log.log_id).load().at(3_990)
        assert one is not None
        content = objects.store.get(name_of(one))
        forged = forged_object(content, b"3990:", b"0993:")
        objects.store.delete([name_of(one)])
        objects.store.create(name_of(one), forged)
        assert objects.manifests is not None
        objects.manifests.remove_log(topic.log.log_id)  # they would tell by the ETag
        (problem,) = EveryReader(settings, topic, config).proof().problems
        assert (problem.kind, problem.range) == ("changed", OffsetRange(3_990, 3_991))
        assert "objects" in problem.detail


class TestServed:
    """The owner serves the folder: others learn from it which objects there are."""

    @pytest.fixture
    def address(self, settings: Settings, storage: frazil.Storage, topic: frazil.Topic) -> Iterator[str]:
        with (
            flight_door(storage, FlightSettings(port=0), movers=True) as door,
            published_addresses(settings, {"flight": door.address}),
        ):
            yield door.address

    def test_the_proof_reads_objects_by_what_the_owner_tells(
        self, settings: Settings, topic: frazil.Topic, address: str, config: Path, objects: ObjectsOfLogs
    ) -> None:
        readers = EveryReader(settings, topic, config)
        proof = readers.proof()
        assert (proof.problems, proof.in_objects) == ([], 4_000)
        one = objects.of(topic.log.log_id).load().at(2_500)
        assert one is not None
        harm(objects, one, "changed")
        assert any(name_of(one) in problem.detail for problem in readers.proof().problems)

    def test_a_task_without_the_store_gets_rows_in_objects_from_the_owner(
        self, topic: frazil.Topic, address: str
    ) -> None:
        wanted = OffsetRange(1_801, 3_777)
        place = (address, NAME, topic.log.log_id, (), wanted, topic.log.schema)
        found = [offset for batch in read_anywhere(*place) for offset in batch.column("_offset").to_pylist()]
        assert found == list(range(1_801, 3_777))


def test_a_list_of_logs_does_not_wait_for_the_store_with_each_of_them(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def fails(_store: object, log_id: str, *_: object) -> None:
        asked.append(log_id)
        raise ObjectStoreUnavailable(log_id, "503 Slow Down")

    clock = FakeClock()
    with open_to_move(settings, moves=False, clock=clock) as owner:
        for number in range(5):
            owner.topic(f"/shop/topic-{number}")
        monkeypatch.setattr("frazil.objects.known.load_objects", fails)
        logs = LogList(owner)
        assert [one.objects_problem is not None for one in logs.read()] == [True] * 5
        assert len(asked) == 1
        clock.advance(60_000_000)
        logs.read()
        assert len(asked) == 2
        monkeypatch.undo()
        clock.advance(60_000_000)
        assert [one.objects_problem for one in logs.read()] == [None] * 5


class TestAway:
    """While the store does not answer, rows are not taken for lost."""

    @pytest.fixture
    def away(self, topic: frazil.Topic, objects: ObjectsOfLogs, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(*_: object) -> None:
            raise ObjectStoreUnavailable("a-log/", "503 Slow Down")

        monkeypatch.setattr("frazil.objects.known.load_objects", fails)
        objects.forget(topic.log.log_id)
        known = objects.of(topic.log.log_id)
        topic.log.colder = with_objects(topic.log.colder, topic.log, known)

    @pytest.mark.usefixtures("away")
    def test_the_mover_says_so_and_accepts_no_gap(
        self, settings: Settings, storage: frazil.Storage, topic: frazil.Topic
    ) -> None:
        error = MoverHere(settings, storage).errors()[NAME]
        assert error is not None
        assert "503 Slow Down" in error

    @pytest.mark.usefixtures("away")
    @pytest.mark.parametrize("face", LOG_FACES)
    def test_readers_say_so(self, settings: Settings, topic: frazil.Topic, config: Path, face: str) -> None:
        with pytest.raises(frazil.FrazilError, match="503 Slow Down"):
            EveryReader(settings, topic, config).rows(face)

    @pytest.mark.parametrize("start", ["earliest", "time"])
    def test_the_spark_source_begins_behind_no_row_that_objects_may_have(
        self, settings: Settings, storage: frazil.Storage, config: Path, monkeypatch: pytest.MonkeyPatch, start: str
    ) -> None:
        """A topic without a table, whose oldest rows are in objects alone."""
        topic = storage.topic("/shop/returns")
        publish(topic, 1_000)
        upload_log(object_store_of(settings), topic.log, 20_000)
        remove_what_the_table_has(storage, topic, 500)
        assert topic.log.first_offset > 0

        def fails(*_: object) -> None:
            raise ObjectStoreUnavailable("a-log/", "503 Slow Down")

        monkeypatch.setattr("frazil.objects.known.load_objects", fails)
        bound = {"startingTimestamp": "0"} if start == "time" else {}
        options = parse_options({"subscribe": topic.name, "config": str(config), **bound})
        with pytest.raises(frazil.FrazilError, match="503 Slow Down"), looking(options, settings) as look:
            look.starts()

    @pytest.mark.usefixtures("away")
    def test_rows_in_files_are_read(self, settings: Settings, topic: frazil.Topic, config: Path) -> None:
        assert EveryReader(settings, topic, config).rows("embedded", 4_500) == everywhere(4_500)


@pytest.mark.parametrize("face", ["spark", "sql"])
def test_rows_that_the_store_has_acknowledged_are_read_whatever_a_crash_has_left_of_the_files(
    settings: Settings, config: Path, face: str
) -> None:
    """They are never synced, and the folder's record of their end is seconds old."""
    with open_to_move(settings, moves=False) as owner:
        topic = owner.create_topic(NAME, ack="object")
        for start in range(0, 40, 10):
            topic.publish_many([payload(offset) for offset in range(start, start + 10)])
        segment, log_id = topic.log.segments[0].path, topic.log.log_id
    write_record(LocalDisk(), settings.log_folder / ENDS_FILE, {log_id: {"topic": NAME, "end": 10}})
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size // 2)
    assert EveryReader(settings, topic, config).rows(face) == everywhere(0, 40)
    assert EveryReader(settings, topic, config).rows(face, 25) == everywhere(25, 40)


@pytest.mark.parametrize("face", ["spark", "sql"])
def test_rows_of_level_object_are_read_by_nobody_while_it_is_unknown_whether_they_are_stored(
    settings: Settings, config: Path, face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_to_move(settings, moves=False) as owner:
        topic = owner.create_topic(NAME, ack="object")
        topic.publish_many([payload(offset) for offset in range(40)])

    def fails(*_: object) -> None:
        raise ObjectStoreUnavailable("a-log/", "503 Slow Down")

    monkeypatch.setattr("frazil.objects.known.load_objects", fails)
    with pytest.raises(frazil.FrazilError, match="503 Slow Down"):
        EveryReader(settings, topic, config).rows(face)


def test_accepting_gives_up_no_row_that_objects_have(
    settings: Settings, storage: frazil.Storage, topic: frazil.Topic
) -> None:
    first_offset = topic.log.first_offset
    storage.close()
    _, goes_on_at = accept_topic(settings, NAME)
    assert goes_on_at == TABLE_END < first_offset


def test_figures_count_rows_in_objects(topic: frazil.Topic, objects: ObjectsOfLogs) -> None:
    stats = topic.stats()
    assert (stats.first_offset, stats.messages, stats.end) == (0, END, END)
    assert stats.tiers.table is not None
    assert stats.tiers.table.lag_rows == END - TABLE_END
    gone = objects.of(topic.log.log_id).load().remove_below(2_000)
    assert gone
    later = topic.stats()
    assert later.first_offset == 0
    assert later.messages == END - (gone[-1].end - TABLE_END)


def test_a_gap_is_skipped_to_the_next_row_that_is_there(topic: frazil.Topic, objects: ObjectsOfLogs) -> None:
    """Rows below 2000 are in the table alone; a subscription without it must not skip what objects have."""
    gone = objects.of(topic.log.log_id).load().remove_below(2_000)
    assert next_offset(topic.log, 3) == gone[-1].end < topic.log.first_offset
    assert next_offset(topic.log, 4_999) == topic.log.first_offset


def test_logs_without_objects_tell_of_none(storage: frazil.Storage, settings: Settings) -> None:
    topic = storage.topic("/shop/other")
    publish(topic, 10)
    info: LogInfo = info_of(topic.log, None)
    assert (info.objects, info.objects_problem, info.held_from) == ((), None, 0)
