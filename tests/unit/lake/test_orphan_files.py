"""Orphans are removed beside moves that are not committed yet, and beside other tables: nothing goes that is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyiceberg.table import Table

import frazil
from frazil.core.errors import LakeUnavailable, TableRefused, TryLater
from frazil.core.settings import Settings, make_settings
from frazil.lake.catalogs.opening import open_catalog
from frazil.lake.maintenance.orphan_files import files_of, remove_orphans
from frazil.lake.maintenance.table_inspection import TableInspector
from frazil.lake.tables.schema import TableName
from parts.every_reader import EveryReader
from parts.in_process import MoverHere
from parts.meddling import Meddling

TOPIC = "/shop/orders"
NAME = TableName("shop", "orders")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings({"data": tmp_path / "data"})


@pytest.fixture
def storage(settings: Settings) -> Iterator[frazil.Storage]:
    with frazil.open(settings) as storage:
        yield storage


def orphans_of(table: Table) -> list[str]:
    """All that is below the table's location and that it does not name: as if everything were old enough."""
    folder = Path(urlsplit(table.location()).path)
    needed = {urlsplit(path).path for path in files_of(table)}
    return [f"file:{path}" for path in sorted(folder.rglob("*")) if path.is_file() and str(path) not in needed]


class Sweep:
    """Iceberg's list and the removal, each at a moment of its own."""

    def __init__(self, settings: Settings) -> None:
        self.catalog = open_catalog(settings)
        self.inspector = TableInspector(settings)
        self.listed: list[str] = []
        self.gone: list[str] = []

    def list(self) -> None:
        self.listed = orphans_of(self.catalog.load_table(NAME.identifier))

    def remove(self) -> None:
        self.inspector.check_alone(NAME)
        self.gone += self.inspector.remove_orphans(NAME, self.listed)

    def both(self) -> None:
        self.list()
        self.remove()


def mover_with(
    settings: Settings, storage: frazil.Storage, before: Callable[[int], None], after: Callable[[int], None] = id
) -> MoverHere:
    """`before` and `after` are called around each commit, with its number."""

    def meddle(number: int, commit: Callable[[], Any]) -> Any:
        before(number)
        try:
            return commit()
        finally:
            after(number)

    return MoverHere(settings, storage, catalog=Meddling(open_catalog(settings), meddle))  # type: ignore[arg-type]


def begin(settings: Settings, storage: frazil.Storage) -> tuple[frazil.Topic, EveryReader]:
    topic = storage.topic(TOPIC)
    topic.publish_many([b"first"] * 10)
    assert MoverHere(settings, storage).tick().rows == 10
    topic.publish_many([b"second"] * 10)
    return topic, EveryReader(settings, topic)


def assert_all_there(settings: Settings, storage: frazil.Storage, every: EveryReader, end: int) -> None:
    for _ in range(2):
        assert MoverHere(settings, storage).errors() == {TOPIC: None}
    assert [offset for offset, _ in every.rows("read_only")] == list(range(end))
    assert every.proof().proven


def test_a_move_whose_files_were_removed_before_its_commit_is_written_again(
    settings: Settings, storage: frazil.Storage
) -> None:
    """A mover that was stopped for days, or whose files were dated by a wrong clock."""
    _, every = begin(settings, storage)
    sweep = Sweep(settings)
    mover = mover_with(settings, storage, lambda number: sweep.both() if number == 1 else None)
    mover.tick()
    assert [path for path in sweep.gone if "/data/" in path], "the files that were about to be committed"
    assert [offset for offset, _ in every.rows("read_only")] == list(range(10)), "no commit names files that are gone"
    assert mover.tick().rows == 10, "the same mover goes on"
    assert_all_there(settings, storage, every, 20)


def test_a_move_that_commits_between_list_and_removal_keeps_its_files(
    settings: Settings, storage: frazil.Storage
) -> None:
    _, every = begin(settings, storage)
    sweep = Sweep(settings)
    mover = mover_with(settings, storage, lambda number: sweep.list(), lambda number: sweep.remove())
    assert mover.tick().rows == 10
    assert [path for path in sweep.listed if "/data/" in path]
    assert not [path for path in sweep.gone if "/data/" in path]
    assert_all_there(settings, storage, every, 20)


def test_a_move_whose_answer_was_lost_keeps_its_files(settings: Settings, storage: frazil.Storage) -> None:
    _, every = begin(settings, storage)
    sweep = Sweep(settings)

    def lose(number: int, commit: Callable[[], Any]) -> Any:
        if number > 1:
            return commit()
        sweep.list()
        commit()
        sweep.remove()
        raise ConnectionError("the answer is lost")

    mover = MoverHere(settings, storage, catalog=Meddling(open_catalog(settings), lose))  # type: ignore[arg-type]
    mover.tick()
    assert sweep.listed
    assert not [path for path in sweep.gone if "/data/" in path]
    assert_all_there(settings, storage, every, 20)


def test_what_is_an_orphan_goes_and_the_table_stays_as_it_is(settings: Settings, storage: frazil.Storage) -> None:
    _, every = begin(settings, storage)
    stray = (
        Path(urlsplit(Sweep(settings).catalog.load_table(NAME.identifier).location()).path) / "data" / "stray.parquet"
    )
    stray.write_bytes(b"of a task that died")
    before = every.rows("read_only")
    sweep = Sweep(settings)
    sweep.both()
    assert [Path(path).name for path in sweep.gone if path.endswith(".parquet")] == ["stray.parquet"]
    assert not stray.exists()
    assert every.rows("read_only") == before
    sweep.both()
    assert not [path for path in sweep.gone if path.endswith(".parquet")][1:]
    assert_all_there(settings, storage, every, 20)


def test_a_table_that_was_moved_elsewhere_keeps_the_files_of_its_former_place(
    settings: Settings, storage: frazil.Storage, tmp_path: Path
) -> None:
    """Renamed and given another location, as other engines do: a new table of the name has its files around it."""
    begin(settings, storage)
    catalog = open_catalog(settings)
    old = catalog.rename_table(NAME.identifier, ("shop", "orders_old"))
    former, files = old.location(), [urlsplit(path).path for path in files_of(old)]
    rows = old.scan().to_arrow().num_rows
    catalog.create_namespace_if_not_exists("shop")
    catalog.create_table(NAME.identifier, old.schema(), location=former)
    sweep = Sweep(settings)
    sweep.list()
    with pytest.raises(TableRefused, match="below the table's own location"):
        sweep.remove()
    with old.transaction() as change:
        change.set_properties({"write.metadata.path": (tmp_path / "elsewhere").as_uri()})
    _set_location(catalog, ("shop", "orders_old"), (tmp_path / "elsewhere").as_uri())
    sweep = Sweep(settings)
    sweep.both()
    assert all(Path(path).exists() for path in files)
    assert catalog.load_table(("shop", "orders_old")).scan().to_arrow().num_rows == rows


def _set_location(catalog: Any, identifier: tuple[str, ...], location: str) -> None:
    from pyiceberg.table.update import SetLocationUpdate

    table = catalog.load_table(identifier)
    catalog.commit_table(table, (), (SetLocationUpdate(location=location),))


def test_nothing_is_deleted_where_it_is_not_known_what_is_needed(settings: Settings, storage: frazil.Storage) -> None:
    begin(settings, storage)
    sweep = Sweep(settings)
    table = sweep.catalog.load_table(NAME.identifier)
    stray = Path(urlsplit(table.location()).path) / "data" / "stray.parquet"
    stray.write_bytes(b"of a task that died")
    sweep.list()

    def away() -> frozenset[str]:
        raise OSError("the store is away")

    with pytest.raises(LakeUnavailable, match="none was deleted"):
        remove_orphans(sweep.catalog, NAME, sweep.listed, away)
    assert stray.exists()


def test_without_the_fence_nothing_is_deleted(settings: Settings, storage: frazil.Storage) -> None:
    begin(settings, storage)
    other = MoverHere(settings, storage)
    topic = storage.topic(TOPIC)
    sweep = Sweep(settings)
    stray = Path(urlsplit(sweep.catalog.load_table(NAME.identifier).location()).path) / "data" / "stray.parquet"
    stray.write_bytes(b"of a task that died")
    sweep.list()

    def meddle(number: int, commit: Callable[[], Any]) -> Any:
        topic.publish(b"more")
        other.tick()
        return commit()

    meddled: Any = Meddling(sweep.catalog, meddle)
    with pytest.raises(TryLater, match="no orphan was deleted"):
        remove_orphans(meddled, NAME, sweep.listed, frozenset)
    assert stray.exists()
