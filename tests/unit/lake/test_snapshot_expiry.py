"""Commits remove old snapshots, so that the table's metadata does not grow; never what somebody still needs."""

from __future__ import annotations

import uuid
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.table.update import SetSnapshotRefUpdate

import frazil
from frazil.core.errors import TableRolledBack
from frazil.core.rows import ENVELOPE, OFFSET
from frazil.lake.catalogs.opening import catalog_properties, open_catalog
from frazil.lake.commit.commit import Committed, Moved
from frazil.lake.files.writer import write_data_files
from frazil.lake.maintenance.expired_files import READERS_MS, ExpiredFiles
from frazil.lake.tables.accept import accept
from frazil.lake.tables.schema import TableName, table_rows
from frazil.lake.tables.store import TableStore

NAME = TableName("default", "orders")
LIMIT = 10
TIME = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


class World:
    """A table with a limit of ten snapshots, and a mover that moves one row at a time."""

    def __init__(self, folder: Path) -> None:
        settings = frazil.Settings(data=folder)
        properties = catalog_properties(settings)
        self.catalog = open_catalog(settings)
        self.store = TableStore(self.catalog, properties.get("warehouse"), properties, LIMIT)
        self.store.ensure(NAME, ENVELOPE)
        self.ends: dict[str, int] = {}

    @property
    def table(self) -> Table:
        return self.catalog.load_table(NAME.identifier)

    def move(self, log_id: str = "log", *, with_file: bool = False) -> Committed:
        """One more row. Most tests need only the token, and no file."""
        start = self.ends.get(log_id, 0)
        files = self._files(start) if with_file else ()
        partition = 0 if log_id == "log" else 1
        moved = Moved(log_id, start, start + 1, files, 1, "", partition)
        committed = self.store.commit(NAME, [moved], str(uuid.uuid4()), lambda _: None)
        assert committed.mine
        self.ends[log_id] = start + 1
        return committed

    def moves(self, count: int, log_id: str = "log", *, with_file: bool = False) -> list[Committed]:
        return [self.move(log_id, with_file=with_file) for _ in range(count)]

    def look_again(self) -> None:
        """As a mover that has just started."""
        self.store.forget_all()
        self.store.ensure(NAME, ENVELOPE)

    def ids(self) -> set[int]:
        return {snapshot.snapshot_id for snapshot in self.table.snapshots()}

    def current(self) -> int:
        found = self.table.metadata.current_snapshot_id
        assert found is not None
        return found

    def set_property(self, name: str, value: str) -> None:
        with self.table.transaction() as transaction:
            transaction.set_properties({name: value})
        self.look_again()

    def _files(self, offset: int) -> tuple[object, ...]:
        row = {"_append_time": TIME, "_publish_time": TIME, "_key": None, "_attributes": [], "_payload": b"tea"}
        batch = pa.RecordBatch.from_pylist([row], schema=ENVELOPE)
        batch = batch.add_column(0, OFFSET, pa.array([offset], pa.int64()))
        rows = pa.Table.from_batches([table_rows(batch, 0)])
        store = self.store
        return tuple(write_data_files(store.metadata_json(NAME), store.io_properties(NAME), rows, uuid.uuid4()))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def metadata_files(world: World) -> set[str]:
    return {str(path) for path in Path(world.table.location().removeprefix("file://"), "metadata").glob("*.avro")}


def test_the_metadata_of_a_table_stops_growing(world: World) -> None:
    sizes, counts = [], []
    for _ in range(35):
        world.move()
        path = Path(world.table.metadata_location.removeprefix("file://"))
        sizes.append(path.stat().st_size)
        counts.append(len(world.table.snapshots()))
    assert max(counts) <= LIMIT
    assert max(sizes[30:]) <= 1.01 * max(sizes[22:30])
    assert len(world.table.metadata.snapshot_log) <= LIMIT
    assert world.store.token(NAME, "log", 0).end == 35  # type: ignore[union-attr]


def test_manifests_are_merged_by_size_and_every_row_stays(world: World) -> None:
    counts = []
    for _ in range(30):
        world.move(with_file=True)
        snapshot = world.table.current_snapshot()
        assert snapshot is not None
        counts.append(len(snapshot.manifests(world.table.io)))
    assert max(counts) <= 7 + 30 // 8
    assert sorted(world.table.scan().to_arrow()["_offset"].to_pylist()) == list(range(30))


def test_tagged_snapshots_and_those_of_branches_stay(world: World) -> None:
    world.moves(3)
    tagged = world.current()
    world.table.manage_snapshots().create_tag(tagged, "kept").commit()
    world.look_again()
    world.moves(2)
    branched = {snapshot.snapshot_id for snapshot in world.table.snapshots()}
    world.table.manage_snapshots().create_branch(world.current(), "other").commit()
    world.look_again()
    world.moves(25)
    assert tagged in world.ids()
    assert branched <= world.ids()
    assert set(world.table.metadata.refs) == {"main", "kept", "other"}
    assert len(world.ids() - branched) <= LIMIT


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("history.expire.min-snapshots-to-keep", "20", 20),
        ("history.expire.max-snapshot-age-ms", "3600000", 26),
        ("gc.enabled", "false", 26),
        ("history.expire.max-snapshot-age-ms", "a week", 26),
    ],
)
def test_what_the_table_itself_wants_kept_is_kept(world: World, name: str, value: str, expected: int) -> None:
    world.set_property(name, value)
    world.moves(25)
    assert len(world.ids()) == expected


def test_what_is_set_of_the_main_branch_outlives_commits(world: World) -> None:
    world.move()
    table = world.table
    wanted = SetSnapshotRefUpdate(
        ref_name="main", type="branch", snapshot_id=world.current(), min_snapshots_to_keep=20, max_ref_age_ms=None
    )
    world.catalog.commit_table(table, (), (wanted,))
    world.look_again()
    world.moves(25)
    assert world.table.metadata.refs["main"].min_snapshots_to_keep == 20
    assert len(world.ids()) == 20


def test_the_last_snapshot_with_files_that_a_compaction_replaced_stays(world: World) -> None:
    world.moves(3, with_file=True)
    last, old = world.current(), {task.file.file_path for task in world.table.scan().plan_files()}
    world.table.overwrite(world.table.scan().to_arrow())
    world.look_again()
    world.moves(20)
    assert last in world.ids()
    assert {task.file.file_path for task in world.table.scan(snapshot_id=last).plan_files()} == old
    assert len(world.ids()) <= LIMIT + 2


def test_a_quiet_log_is_known_although_no_snapshot_speaks_of_it(world: World) -> None:
    world.move("quiet")
    world.moves(25)
    world.look_again()
    assert world.store.token(NAME, "quiet", 1).end == 1  # type: ignore[union-attr]
    assert accept(world.catalog, NAME, "quiet", 0, "word", partition=1) == 1


def test_a_rollback_is_seen_by_a_log_of_which_no_kept_snapshot_speaks(world: World) -> None:
    world.move("quiet")
    world.moves(25)
    before = world.current()
    world.move("quiet")
    world.move()
    world.table.manage_snapshots().set_current_snapshot(before).commit()
    world.look_again()
    for log_id, partition in (("log", 0), ("quiet", 1)):
        with pytest.raises(TableRolledBack):
            world.store.token(NAME, log_id, partition)


def test_a_rollback_to_a_compaction_is_accepted_with_the_rows_that_are_there(world: World) -> None:
    world.moves(3, with_file=True)
    world.table.overwrite(world.table.scan().to_arrow())
    compacted = world.current()
    world.table.maintenance.expire_snapshots().by_ids(list(world.ids() - {compacted})).commit()
    world.look_again()
    world.moves(3, with_file=True)
    world.table.manage_snapshots().set_current_snapshot(compacted).commit()
    world.look_again()
    with pytest.raises(TableRolledBack):
        world.store.token(NAME, "log", 0)
    assert accept(world.catalog, NAME, "log", 0, "word") == 3


def test_files_of_expired_snapshots_go_after_an_hour_and_no_others(world: World) -> None:
    world.moves(3, with_file=True)
    world.table.manage_snapshots().create_tag(world.current(), "kept").commit()
    world.look_again()
    expired = [one for committed in world.moves(30, with_file=True) for one in committed.expired]
    assert len(expired) >= 20
    now_ms = world.table.metadata.last_updated_ms
    files = ExpiredFiles(world.table)
    files.note(expired, now_ms)
    before = metadata_files(world)
    files.sweep(lambda: world.table, now_ms + READERS_MS - 1)
    assert metadata_files(world) == before
    files.sweep(lambda: world.table, now_ms + READERS_MS)
    table = world.table
    used = {
        path.removeprefix("file://")
        for snapshot in table.snapshots()
        for path in (snapshot.manifest_list, *(each.manifest_path for each in snapshot.manifests(table.io)))
    }
    assert metadata_files(world) == used
    assert [len(table.scan(snapshot_id=each.snapshot_id).to_arrow()) for each in table.snapshots()][-1] == 33


def test_files_of_another_table_of_the_same_name_are_not_touched(world: World) -> None:
    expired = [one for committed in world.moves(15, with_file=True) for one in committed.expired]
    files = ExpiredFiles(world.table)
    files.note(expired, 0)
    before = metadata_files(world)
    world.catalog.drop_table(NAME.identifier)
    world.look_again()
    files.sweep(lambda: world.table, READERS_MS)
    assert before <= metadata_files(world)


def test_enough_due_snapshots_are_swept_by_commits_themselves(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frazil.lake.maintenance.expired_files.READERS_MS", 0)
    monkeypatch.setattr("frazil.lake.maintenance.expired_files.SWEEP_COUNT", 5)
    world.moves(40, with_file=True)
    world.store._sweeper._pool.shutdown()  # waits for it
    assert len([path for path in metadata_files(world) if "/snap-" in path]) <= LIMIT + 5 + LIMIT // 10
    assert len(world.table.scan().to_arrow()) == 40
