"""One range of a log for several tables: each row is in each table once, wherever a tick is cut off."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import frazil
from frazil.core.offsets import OffsetRange
from frazil.core.rows import OFFSET
from frazil.core.settings import Settings, make_settings
from frazil.lake.catalogs.opening import catalog_properties, open_catalog
from frazil.lake.tables.schema import TableLayout, TableName
from frazil.lake.tables.store import TableStore
from frazil.lake.tables.token import derived_ends, ends, is_transformed
from frazil.log.info import LogInfo
from frazil.node.movers.log_source import OwnLogs
from frazil.node.movers.tick_report import TickReport
from frazil.pipeline.move import mover
from frazil.pipeline.move.moved_topic import MovedTopic
from frazil.pipeline.move.mover import Mover
from frazil.pipeline.move.outputs import next_range
from frazil.pipeline.move.plan import Waiting, plan
from frazil.testing import FakeClock
from frazil.testing.jobs import InProcessJobs
from parts.meddling import Meddling

ORDERS, VISITS = "/shop/orders", "/shop/visits"
OWN, LETTERS, SIZES = TableName("shop", "orders"), TableName("shop", "orders_dead"), TableName("shop", "orders_sizes")
COLUMNS = {
    LETTERS: pa.schema([("at", pa.int64()), ("why", pa.string())]),
    SIZES: pa.schema([("at", pa.int64()), ("size", pa.int32())]),
}


class Halves:
    """Rows with an odd offset are dead letters, and the size of every row is in a table of its own."""

    def __init__(self, *tables: TableName) -> None:
        self.tables = {table: TableLayout(COLUMNS[table]) for table in tables or COLUMNS}
        self.errors = None

    def written(self, table: TableName) -> tuple[str, ...]:
        return ()

    def parts(self, rows: pa.RecordBatch, partition: int) -> Iterator[Mapping[TableName, pa.RecordBatch]]:
        offsets = rows.column(OFFSET.name)
        if pc.any(pc.equal(rows.column("_payload"), b"poison")).as_py():
            raise ValueError("it is poisoned")
        odd = offsets.filter(pc.equal(pc.bit_wise_and(offsets, 1), 1))
        sizes = pc.binary_length(rows.column("_payload"))
        found = {
            LETTERS: pa.record_batch([odd, pa.array(["odd"] * len(odd))], schema=COLUMNS[LETTERS]),
            SIZES: pa.record_batch([offsets, sizes.cast(pa.int32())], schema=COLUMNS[SIZES]),
        }
        yield {table: found[table] for table in self.tables}


class Crash(BaseException):
    """The process is killed: nothing catches it."""


def crash_at(killed: int, after: bool) -> Callable[[int, Callable[[], Any]], Any]:
    """Kill the mover at that commit, before it or behind it."""

    def crash(number: int, commit: Callable[[], Any]) -> Any:
        if number == killed and not after:
            raise Crash
        done = commit()
        if number == killed:
            raise Crash
        return done

    return crash


class World:
    def __init__(self, settings: Settings, storage: frazil.Storage) -> None:
        self.settings = settings
        self.storage = storage
        self.catalog = open_catalog(settings)
        self.derived: Halves | None = Halves()
        self.on_commit: Callable[[int, Callable[[], Any]], Any] = lambda _, commit: commit()

    def tick(self) -> TickReport:
        """Of a mover that has just started."""
        properties = catalog_properties(self.settings)
        catalog: Any = Meddling(self.catalog, self.on_commit)
        tables = TableStore(catalog, properties.get("warehouse"), properties)
        source, jobs = OwnLogs(self.storage), InProcessJobs()
        return Mover(
            self.settings, source, tables, jobs, FakeClock(), lambda _: None, self._topic_of
        ).tick(all_of_it=True)  # fmt: skip

    def _topic_of(self, info: LogInfo) -> MovedTopic:
        derived = self.derived if str(info.topic) == ORDERS else None
        return MovedTopic(info, self.settings.of_topic(info.topic), derived)

    def publish(self, count: int, topic: str = ORDERS) -> None:
        self.storage.topic(topic).publish_many([b"x" * number for number in range(count)])

    def column(self, table: TableName, column: str) -> list[int]:
        found: list[int] = self.catalog.load_table(table.identifier).scan().to_arrow()[column].to_pylist()
        return sorted(found)

    def end(self, table: TableName) -> int:
        if not self.catalog.table_exists(table.identifier):
            return 0
        found = self.catalog.load_table(table.identifier)
        return ends(found).get(self.storage.topic(ORDERS).log.log_id, 0)

    def check(self, count: int) -> None:
        """Each of the first rows is in each table once, and no table but the own one is behind its rows."""
        assert self.column(OWN, "_offset") == list(range(count))
        assert self.column(SIZES, "at") == list(range(count))
        assert self.column(LETTERS, "at") == list(range(1, count, 2))
        assert [self.end(table) for table in (OWN, SIZES)] == [count] * 2
        recorded = derived_ends(self.catalog.load_table(OWN.identifier), self.storage.topic(ORDERS).log.log_id)
        assert recorded == {table.table: self.end(table) for table in (LETTERS, SIZES)}


@pytest.fixture
def world(tmp_path: Path) -> Any:
    settings = make_settings({"data": tmp_path / "data"})
    with frazil.open(settings) as storage:
        yield World(settings, storage)


def test_every_table_gets_its_rows_and_its_token(world: World) -> None:
    world.publish(10)
    report = world.tick()
    assert (report.failures, report.rows, report.commits) == (0, 10, 3)
    world.check(10)
    assert is_transformed(world.catalog.load_table(SIZES.identifier))
    assert not is_transformed(world.catalog.load_table(OWN.identifier))
    world.publish(5)
    assert world.tick().topics[ORDERS].table_end == 15
    world.check(15)
    assert world.tick().commits == 0


def test_a_table_that_gets_no_row_of_a_range_is_neither_created_nor_committed(world: World) -> None:
    world.publish(1)
    assert world.tick().failures == 0
    assert not world.catalog.table_exists(LETTERS.identifier)
    world.publish(1)
    report = world.tick()
    assert (report.failures, report.commits, world.column(LETTERS, "at")) == (0, 3, [1])
    world.publish(1)
    assert world.tick().commits == 2  # offset 2 is no letter
    assert (world.end(LETTERS), world.end(OWN)) == (2, 3)
    world.publish(2)
    assert world.tick().commits == 3
    world.check(5)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("killed", [1, 2, 3, 4, 5])
def test_a_mover_killed_while_it_creates_tables_is_made_good_by_the_next(
    world: World, killed: int, after: bool
) -> None:
    """The first commits create tables; the others are those of the rows."""
    world.publish(6)
    world.on_commit = crash_at(killed, after)
    with pytest.raises(Crash):
        world.tick()
    world.on_commit = lambda _, commit: commit()
    world.publish(2)
    for _ in range(3):
        assert world.tick().failures == 0
    world.check(8)


@pytest.mark.parametrize("lost", ["dropped", "rolled back", "replaced"])
def test_a_derived_table_that_lost_rows_is_refused_until_that_is_accepted(world: World, lost: str) -> None:
    world.publish(4)
    assert world.tick().failures == 0
    world.publish(4)
    assert world.tick().failures == 0
    if lost == "rolled back":
        table = world.catalog.load_table(SIZES.identifier)
        first = table.snapshots()[1].snapshot_id
        with table.manage_snapshots() as change:
            change.rollback_to_snapshot(first)
    else:
        world.catalog.drop_table(SIZES.identifier)
    if lost == "replaced":
        world.catalog.create_table(SIZES.identifier, COLUMNS[SIZES])
    world.publish(4)
    report = world.tick()
    wanted = "table_rolled_back" if lost == "rolled back" else "derived_table_behind"
    assert (report.topics[ORDERS].error_code, world.end(OWN), report.commits) == (wanted, 8, 0)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("killed", [1, 2, 3])
def test_a_mover_killed_between_the_commits_is_made_good_by_the_next(world: World, killed: int, after: bool) -> None:
    """At every commit of a tick, before it and behind it. The topic's own table is never ahead of another."""
    world.publish(6)
    assert world.tick().failures == 0
    world.publish(6)
    world.on_commit = crash_at(killed, after)
    with pytest.raises(Crash):
        world.tick()
    assert world.end(OWN) <= min(world.end(LETTERS), world.end(SIZES))
    world.on_commit = lambda _, commit: commit()
    assert world.tick().failures == 0
    world.check(12)
    world.publish(3)
    assert world.tick().failures == 0
    world.check(15)


def test_a_derived_table_that_two_crashes_left_ahead_is_missed_if_it_is_dropped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second mover ended in the middle of what the first one had committed, and later rows are no letters."""

    def crash(_: int, commit: Callable[[], Any]) -> Any:
        if world.end(LETTERS) == world.end(SIZES) == 5:
            raise Crash  # before the commit of the topic's own table
        return commit()

    world.publish(5)
    world.on_commit = crash
    with pytest.raises(Crash):
        world.tick()
    world.on_commit = lambda _, commit: commit()
    with monkeypatch.context() as patch:
        patch.setattr(mover, "plan", lambda waiting, *rest, **named: plan(first_rows(waiting, 4), *rest, **named))
        assert world.tick().failures == 0
    assert (world.end(OWN), world.end(LETTERS)) == (4, 5)
    assert world.tick().failures == 0
    assert world.end(OWN) == 5
    world.catalog.drop_table(LETTERS.identifier)
    world.publish(1)
    report = world.tick()
    assert (report.topics[ORDERS].error_code, world.end(OWN)) == ("derived_table_behind", 5)


def first_rows(waiting: Sequence[Waiting], count: int) -> list[Waiting]:
    ranges = [OffsetRange(one.range.start, min(one.range.end, one.range.start + count)) for one in waiting]
    return [replace(one, range=each) for one, each in zip(waiting, ranges, strict=True)]


def test_a_lost_answer_of_one_table_doubles_nothing(world: World) -> None:
    world.publish(3)
    assert world.tick().failures == 0
    world.publish(3)

    def lose(number: int, commit: Callable[[], Any]) -> Any:
        done = commit()
        if number == 1:
            raise TimeoutError("no answer")
        return done

    world.on_commit = lose
    assert world.tick().failures == 0
    world.on_commit = lambda _, commit: commit()
    world.check(6)


def test_a_table_that_refuses_holds_back_its_topic_alone_and_heals(world: World) -> None:
    world.publish(4)
    world.publish(4, VISITS)
    assert world.tick().failures == 0
    table = world.catalog.load_table(SIZES.identifier)
    with table.transaction() as change:
        change.set_properties({"write.parquet.compression-level": "much"})
    world.publish(4)
    world.publish(4, VISITS)
    report = world.tick()
    assert "much" in str(report.topics[ORDERS].error)
    assert (report.topics[ORDERS].table_end, report.topics[VISITS].table_end) == (4, 8)
    assert world.end(OWN) == 4
    with world.catalog.load_table(SIZES.identifier).transaction() as change:
        change.remove_properties("write.parquet.compression-level")
    assert world.tick().failures == 0
    world.check(8)


def test_rows_that_nothing_can_be_derived_from_are_the_topics_error(world: World) -> None:
    world.publish(2, VISITS)
    world.storage.topic(ORDERS).publish(b"poison")
    report = world.tick()
    assert "it is poisoned" in str(report.topics[ORDERS].error)
    assert (report.topics[VISITS].error, report.topics[VISITS].table_end, world.end(OWN)) == (None, 2, 0)


def test_a_table_that_is_derived_later_begins_where_the_topics_own_is(world: World) -> None:
    world.derived = None
    world.publish(4)
    world.tick()
    world.derived = Halves()
    world.publish(4)
    assert world.tick().failures == 0
    assert (world.column(OWN, "_offset"), world.column(SIZES, "at")) == (list(range(8)), [4, 5, 6, 7])


def test_the_table_of_another_topic_is_none_to_derive_for(world: World) -> None:
    world.publish(2)
    world.publish(2, f"/{SIZES.namespace}/{SIZES.table}")
    report = world.tick()
    assert "is the table of /shop/orders_sizes" in str(report.topics[ORDERS].error)
    assert report.topics["/shop/orders_sizes"].table_end == 2


@pytest.mark.parametrize(
    ("ends", "wanted"),
    [
        ((5, 5, 5), (OffsetRange(5, 9), (OWN, LETTERS, SIZES))),
        ((5, 7, 5), (OffsetRange(5, 7), (OWN, SIZES))),
        ((5, 7, 9), (OffsetRange(5, 7), (OWN,))),
        ((9, 3, 8), (OffsetRange(3, 8), (LETTERS,))),
        ((9, 9, 9), None),
    ],
)
def test_tables_that_are_behind_catch_up_first(ends: tuple[int, int, int], wanted: object) -> None:
    assert next_range(dict(zip((OWN, LETTERS, SIZES), ends, strict=True)), 9) == wanted
