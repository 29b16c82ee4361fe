"""Copies of one data folder that are served at once, each with a mover for the same catalog.

The log ids are the same in all copies, so offsets and ids alone can't tell their rows apart.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

import frazil
from frazil.core.credentials import NO_CREDENTIALS
from frazil.core.errors import TableRefused
from frazil.core.names import TopicName
from frazil.core.settings import FlightSettings, Settings, make_settings
from frazil.doors.flight.door import flight_door
from frazil.lake.maintenance.table_inspection import TableInspector
from frazil.lake.tables.ends import CommittedEnds
from frazil.lake.tables.schema import TableName
from frazil.log.info import LogInfo
from frazil.node.movers.log_source import OwnLogs, RemoteOwner
from frazil.pipeline.move.mover import Mover
from parts.in_process import MoverHere

ORDERS = "/shop/orders"


def settings_of(folder: Path, name: str) -> Settings:
    """A copy of the folder, where what is moved may go; the lake is the same for all."""
    lake = folder / "lake"
    lake.mkdir(exist_ok=True)
    catalog = {"uri": f"sqlite:///{lake}/catalog.db"}
    wal = {"max_file_size": 64 * 1024, "retention": {"bytes": 1}}
    store = {"path": lake / "warehouse"}
    return make_settings({"data": folder / name, "catalog": catalog, "object_store": store, "wal": wal})


@pytest.fixture
def copies(tmp_path: Path) -> tuple[Settings, Settings]:
    """Five rows in each, all of them in the table."""
    one, two = settings_of(tmp_path, "one"), settings_of(tmp_path, "two")
    with frazil.open(one) as storage:
        publish(storage, "both", 5)
        assert MoverHere(one, storage).errors() == {ORDERS: None}
    assert one.data is not None
    assert two.data is not None
    shutil.copytree(one.data, two.data)
    return one, two


def publish(storage: frazil.Storage, who: str, count: int) -> None:
    for number in range(count):
        storage.topic(ORDERS).publish(f"{who} {number}")


def of(who: str, count: int) -> list[bytes]:
    return [f"{who} {number}".encode() for number in range(count)]


def payloads(here: MoverHere) -> list[bytes]:
    return [row["_payload"] for row in here.rows(ORDERS)]


@pytest.mark.parametrize(("mine", "theirs"), [(3, 8), (8, 3), (4, 4)])
def test_when_both_take_rows_and_both_are_moved_the_second_is_refused_and_nothing_is_mixed(
    copies: tuple[Settings, Settings], mine: int, theirs: int
) -> None:
    one, two = copies
    with frazil.open(one) as first, frazil.open(two) as second:
        here, there = MoverHere(one, first), MoverHere(two, second)
        assert here.errors() == there.errors() == {ORDERS: None}  # both have seen that their log goes on
        publish(first, "first", mine)
        publish(second, "second", theirs)
        assert here.errors() == {ORDERS: None}
        for _ in range(3):
            report = there.tick()
        assert report.topics[ORDERS].error_code == "table_ahead"
        publish(first, "first again", 3)
        assert here.errors() == {ORDERS: None}
        publish(second, "second again", 10)
        assert there.tick().topics[ORDERS].error_code == "table_ahead"
    assert payloads(here) == [*of("both", 5), *of("first", mine), *of("first again", 3)]


def test_a_copy_that_is_moved_in_the_middle_of_the_others_move_mixes_nothing(copies: tuple[Settings, Settings]) -> None:
    one, two = copies
    with frazil.open(one) as first, frazil.open(two) as second:
        here = MoverHere(one, first)
        there = MoverHere(two, second, lambda: here.tick() and None)
        publish(first, "first", 3)
        publish(second, "second", 9)
        assert there.tick().rows == 0
        assert there.tick().topics[ORDERS].error_code == "table_ahead"
    assert payloads(here) == [*of("both", 5), *of("first", 3)]


def test_retention_removes_no_row_that_the_table_has_of_another_copy_only(copies: tuple[Settings, Settings]) -> None:
    """The table is far beyond the first segments of both, and has the rows of one."""
    one, two = copies
    with frazil.open(one) as first, frazil.open(two) as second:
        for storage, who in ((first, "first"), (second, "second")):
            for number in range(10):
                storage.topic(ORDERS).publish_many([f"{who} {number} {'x' * 1_000}"] * 50)
        here = MoverHere(one, first)
        assert here.errors() == {ORDERS: None}
        for storage in (first, second):
            storage.maintain()
        assert first.topic(ORDERS).log.first_offset > 5
        assert second.topic(ORDERS).log.first_offset == 0
        (kept,) = second.kept_by_guards()
        assert kept.error["error"] == "table_ahead"
        assert sum(1 for _ in second.topic(ORDERS).read(0)) == 505


def test_a_folder_restored_in_the_middle_of_a_move_mixes_nothing(tmp_path: Path) -> None:
    """The plan is made by the log of before, and the tasks find files of that log's name with other rows."""
    settings = settings_of(tmp_path, "data")
    assert settings.data is not None
    stack = ExitStack()
    source = Source(stack.enter_context(frazil.open(settings)))
    publish(source.storage, "old", 3)
    stack.close()
    shutil.copytree(settings.data, tmp_path / "copy")
    source.storage = stack.enter_context(frazil.open(settings))
    publish(source.storage, "old again", 2)
    todo = [False, True]

    def meanwhile() -> None:
        if todo and todo.pop(0):
            stack.close()
            assert settings.data is not None
            shutil.rmtree(settings.data)
            shutil.copytree(tmp_path / "copy", settings.data)
            source.storage = stack.enter_context(frazil.open(settings))
            publish(source.storage, "new", 20)

    here = MoverHere(settings, source.storage, meanwhile, source=source)
    with stack:
        assert here.errors() == {ORDERS: None}
        publish(source.storage, "lost", 3)
        report = here.tick()
        assert not todo
        assert report.rows == 0
        assert here.tick().topics[ORDERS].error_code == "table_ahead"
    assert payloads(here) == [*of("old", 3), *of("old again", 2)]
    in_table = {task.file.file_path.removeprefix("file://") for task in here.table(ORDERS).scan().plan_files()}
    assert {str(path) for path in (tmp_path / "lake").rglob("*.parquet")} == in_table


def test_the_last_row_is_read_once_for_each_opening_and_each_move(
    copies: tuple[Settings, Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick over idle topics reads none."""
    read: list[int] = []
    real = Mover._row
    monkeypatch.setattr(Mover, "_row", lambda mover, topic, offset: read.append(offset) or real(mover, topic, offset))
    one, _ = copies
    with frazil.open(one) as storage:
        here = MoverHere(one, storage)
        for _ in range(3):
            here.tick()
        assert read == [4]
        publish(storage, "first", 2)
        for _ in range(3):
            here.tick()
        assert read == [4, 6]


def test_a_mover_beside_a_copy_takes_the_rows_of_the_owner_that_it_works_for(
    copies: tuple[Settings, Settings],
) -> None:
    """Its host has a copy at the very paths that the owner tells, with segments of the same log ids."""
    one, two = copies
    with frazil.open(two) as storage:
        publish(storage, "second", 9)
    with frazil.open(one) as storage, flight_door(storage, FlightSettings(port=0)) as door:
        publish(storage, "first", 7)
        beside = BesideACopy(door.address, two)
        try:
            here = MoverHere(one, storage, source=beside)
            assert here.errors() == {ORDERS: None}
        finally:
            beside.close()
    assert payloads(here) == [*of("both", 5), *of("first", 7)]


class BesideACopy(RemoteOwner):
    """The owner as a mover sees it whose own host has a copy of the folder under the same name."""

    def __init__(self, address: str, copy: Settings) -> None:
        super().__init__(address)
        self._copy = copy.log_folder

    def logs(self) -> list[LogInfo]:
        return [self._as_seen(info) for info in super().logs()]

    def _as_seen(self, info: LogInfo) -> LogInfo:
        assert info.folder is not None
        files = tuple((base, self._copy / path.relative_to(info.folder.path)) for base, path in info.files)
        assert all(path.exists() for _, path in files)
        return replace(info, files=files, folder=replace(info.folder, path=self._copy))


class Source:
    """Logs of a storage that may be another by the next look."""

    address = None
    credentials = NO_CREDENTIALS

    def __init__(self, storage: frazil.Storage) -> None:
        self.storage = storage

    def logs(self) -> list[LogInfo]:
        return OwnLogs(self.storage).logs()


@pytest.fixture
def embedded(tmp_path: Path) -> tuple[Settings, Settings]:
    """A folder with the catalog and the tables in it, as they are by default, and a copy of all."""
    few = {"maintenance": {"snapshots_max": 4, "snapshots_min": 2}}
    one, two = (make_settings({"data": tmp_path / name, **few}) for name in ("one", "two"))
    with frazil.open(one) as storage:
        publish(storage, "both", 5)
        assert MoverHere(one, storage).errors() == {ORDERS: None}
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    return one, two


def test_a_copy_with_the_catalog_in_it_leaves_the_tables_of_the_original_alone(
    embedded: tuple[Settings, Settings],
) -> None:
    """Its catalog names their files. It would delete what the original's catalog still needs."""
    one, two = embedded
    with frazil.open(two) as storage:
        there = MoverHere(two, storage)
        publish(storage, "second", 3)
        assert "two catalogs can't share a table" in str(there.errors()[ORDERS])
        with pytest.raises(TableRefused, match="two is a copy"):
            CommittedEnds(two).end(TopicName.parse(ORDERS), storage.topic(ORDERS).log.log_id)
    for check in (TableInspector(two).check_tokens, TableInspector(two).check_may_delete):
        with pytest.raises(TableRefused, match="two is a copy"):
            check(TableName("shop", "orders"))
    with frazil.open(one) as storage:
        here = MoverHere(one, storage)
        publish(storage, "first", 2)
        assert here.errors() == {ORDERS: None}
    assert payloads(here) == [*of("both", 5), *of("first", 2)]


def test_a_copy_whose_catalog_was_removed_has_tables_of_its_own(embedded: tuple[Settings, Settings]) -> None:
    _, two = embedded
    assert two.embedded_catalog is not None
    two.embedded_catalog.unlink()
    with frazil.open(two) as storage:
        there = MoverHere(two, storage)
        publish(storage, "second", 3)
        assert there.errors() == {ORDERS: None}
    assert payloads(there) == [*of("both", 5), *of("second", 3)]


def test_a_folder_behind_a_symbolic_link_is_the_same(embedded: tuple[Settings, Settings], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "one")
    linked = make_settings({"data": tmp_path / "link"})
    with frazil.open(linked) as storage:
        here = MoverHere(linked, storage)
        publish(storage, "first", 2)
        assert here.errors() == {ORDERS: None}
