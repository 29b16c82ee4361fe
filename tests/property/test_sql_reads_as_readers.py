"""SQL says what readers say, row by row: random columns with odd names, other engines at work, topics made again."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyiceberg.table.update import AssertTableUUID, RemoveSchemasUpdate, SetSnapshotRefUpdate

import frazil
from frazil.core.settings import RetentionSettings, Settings, make_settings
from frazil.lake.accept import accept
from frazil.lake.catalog import catalog_properties, open_catalog
from frazil.lake.store import TableStore
from frazil.lake.tables import TableName
from frazil.lake.token import ends, gaps
from frazil.pipeline.mover import Mover
from frazil.pipeline.source import OwnLogs
from frazil.testing import FakeClock
from frazil.testing.jobs import JobsHere
from frazil.topics.logs import FileView
from frazil.topics.read_only import open_read_only
from frazil.topics.sql import SqlSession
from frazil.topics.sql_relation import shown_names
from parts.moving import Floor

TOPIC = "/shop/orders"
NAMES = ["unit-price", "item name", "a.b", "1st", "naïve", "A", "a", 'quo"te', "select", "x_x2D", "offset", "c'd"]
UTC = dt.timezone.utc
TIMES = st.integers(-(2**50), 2**52).map(lambda number: dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=number))  # noqa: DTZ001

PLAIN: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)),
    (pa.binary(), st.binary(max_size=5)),
    (pa.date32(), st.dates(dt.date(1900, 1, 1), dt.date(2200, 1, 1))),
    (pa.timestamp("us"), TIMES),
    (pa.timestamp("us", "UTC"), TIMES.map(lambda time: time.replace(tzinfo=UTC))),
    (pa.decimal128(9, 2), st.integers(-(10**8), 10**8).map(lambda number: decimal.Decimal(number) / 100)),
]


def nested(kind: tuple[pa.DataType, st.SearchStrategy[Any]]) -> list[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    inner, values = kind
    some = st.none() | values
    return [
        (pa.list_(inner), st.lists(some, max_size=3)),
        (pa.map_(pa.string(), inner), st.dictionaries(st.sampled_from("abc"), some).map(lambda one: list(one.items()))),
        (pa.struct([("in-ner", inner), ("b", pa.int32())]), st.fixed_dictionaries({"in-ner": some, "b": st.just(7)})),
    ]


KINDS = PLAIN + [each for kind in (PLAIN[1], PLAIN[4]) for each in nested(kind)]
COLUMNS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(range(len(KINDS)))),
    min_size=1, max_size=4, unique_by=lambda column: column[0],
)  # fmt: skip
STEPS = st.lists(
    st.sampled_from(["publish", "move", "empty", "delete", "rewrite", "add", "forget", "roll back", "accept", "again"]),
    min_size=3, max_size=6,
)  # fmt: skip


class World:
    def __init__(self, ours: Settings, storage: frazil.Storage, columns: list[tuple[str, int]]) -> None:
        self.settings = ours
        self.storage = storage
        self.schema = pa.schema([(name, KINDS[kind][0]) for name, kind in columns])
        self.catalog = open_catalog(ours)
        known = catalog_properties(ours)
        tables = TableStore(self.catalog, known.get("warehouse"), known)
        self._mover = Mover(ours, OwnLogs(storage), tables, JobsHere(), FakeClock(), lambda _: None)
        self._values = st.fixed_dictionaries({name: st.none() | KINDS[kind][1] for name, kind in columns})
        self._added = 0
        storage.create_topic(TOPIC, schema=self.schema)

    @property
    def topic(self) -> frazil.Topic:
        return self.storage.topic(TOPIC)

    def table(self) -> Any:
        identifier = TableName("shop", "orders").identifier
        return self.catalog.load_table(identifier) if self.catalog.table_exists(identifier) else None

    def do(self, step: str, data: st.DataObject) -> None:
        table = self.table()
        match step:
            case "publish":
                rows = data.draw(st.lists(self._values, min_size=1, max_size=4))
                self.topic.publish_many(pa.RecordBatch.from_pylist(rows, schema=self.schema))
            case "move":
                self._mover.forget()
                self._mover.tick(all_of_it=True)
            case "again":
                self.storage.delete_topic(TOPIC)
                self.storage.create_topic(TOPIC, schema=self.schema)
            case "empty":
                self._empty_log()
            case _ if table is not None and table.current_snapshot() is not None:
                self._meddle(step, table, data)

    def _meddle(self, step: str, table: Any, data: st.DataObject) -> None:
        """As another engine does, or a person."""
        match step:
            case "delete":
                self._empty_log()
                table.delete(f"_offset = {data.draw(st.integers(0, 6))}")
            case "rewrite":
                table.overwrite(table.scan().to_arrow())
            case "add":
                self._added += 1
                with table.update_schema() as update:
                    update.add_column(f"added {self._added}", table.schema().find_type("_offset"))
                    if self._added > 1:
                        update.rename_column(f"added {self._added - 1}", f"renamed {self._added}")
            case "forget":
                current = table.metadata.current_schema_id
                gone = [one.schema_id for one in table.metadata.schemas if one.schema_id != current]
                same = (AssertTableUUID(uuid=table.metadata.table_uuid),)
                if gone:
                    self.catalog.commit_table(table, same, (RemoveSchemasUpdate(schema_ids=gone),))
            case "accept":
                with contextlib.suppress(frazil.FrazilError):
                    log = self.topic.log
                    accept(self.catalog, TableName("shop", "orders"), log.log_id, log.first_offset, str(uuid.uuid4()))
            case "roll back":
                to = table.metadata.snapshots[
                    -1 - data.draw(st.integers(0, 5)) % len(table.metadata.snapshots)
                ].snapshot_id
                same = (AssertTableUUID(uuid=table.metadata.table_uuid),)
                back = SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=to)
                self.catalog.commit_table(table, same, (back,))

    def _empty_log(self) -> None:
        """Retention takes what the table has."""
        (floor,) = self.storage.guards
        assert isinstance(floor, Floor)
        log = self.topic.log
        with contextlib.suppress(frazil.FrazilError), open_read_only(self.settings) as tables:
            found = tables.topic(TOPIC)
            if found.stats().log_id == log.log_id:
                floor.ends[log.log_id] = found.stats().end
        self.storage.set_retention(TOPIC, RetentionSettings(age_ms=1))
        self.storage.maintain()
        self.storage.set_retention(TOPIC, RetentionSettings())

    # --- what each says

    def read(self) -> list[dict[str, Any]] | type[frazil.FrazilError]:
        """The reader's rows. A table that can't be read is refused also where the log still has all that it holds."""
        try:
            self._refusal()
            rows = list(self.topic.read_batches("earliest"))
        except frazil.FrazilError as error:
            return type(error)
        return [row for batch in rows for row in batch.to_pylist()]

    def _refusal(self) -> None:
        """A table that has nothing of the present log, but of earlier ones, concerns no reader of this one."""
        table = self.table()
        if table is None or self.topic.log.log_id not in ends(table):
            return
        with open_read_only(self.settings) as tables:
            try:
                found = tables.topic(TOPIC)
            except frazil.TopicNotFound:
                return
            if found.stats().log_id == self.topic.log.log_id:
                list(found.read_batches("earliest"))

    def ask(self, query: str) -> list[dict[str, Any]] | type[frazil.FrazilError]:
        try:
            with SqlSession(self.settings, FileView(self.settings)) as session:
                return [row for batch in session.run(query).batches for row in batch.to_pylist()]
        except frazil.FrazilError as error:
            return type(error)

    def check(self) -> None:
        read, asked = self.read(), self.ask("select * from shop.orders order by _offset")
        if isinstance(read, type) or isinstance(asked, type):
            assert asked == read
            return
        table = self.table()
        read = self._without_accepted(read, {row["_offset"] for row in asked})
        names = [*([] if table is None else [one.name for one in table.schema().fields]), "_offset", *self.schema.names]
        shown = shown_names(names)
        ours = ["_offset", *self.schema.names]
        assert [[row[shown[name]] for name in ours] for row in asked] == [[row[name] for name in ours] for row in read]
        assert self.ask("select count(*) as rows from shop.orders") == [{"rows": len(read)}]

    def _without_accepted(self, read: list[dict[str, Any]], asked: set[int]) -> list[dict[str, Any]]:
        """SQL may leave out what a person accepted as missing from the table, also while the log has it."""
        table = self.table()
        known = () if table is None else gaps(table, self.topic.log.log_id)
        missing = {offset for gap in known for offset in range(gap.start, gap.end)} - asked
        return [row for row in read if row["_offset"] not in missing]


@contextlib.contextmanager
def a_world(columns: list[tuple[str, int]]) -> Iterator[World]:
    with tempfile.TemporaryDirectory() as folder:
        ours = make_settings(
            {"data": Path(folder) / "da[t]a", "wal": {"max_file_size": 64 * 1024, "cache_capacity": 0}}
        )
        with frazil.open(ours) as storage:
            storage.guards = [Floor()]
            yield World(ours, storage, columns)


@pytest.mark.filterwarnings("ignore:Delete operation did not match any records")
@pytest.mark.timeout(300)
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],  # to shrink an example takes minutes
)
@given(columns=COLUMNS, steps=STEPS, data=st.data())
def test_sql_says_what_readers_say(columns: list[tuple[str, int]], steps: list[str], data: st.DataObject) -> None:
    with a_world(columns) as world:
        for step in ["publish", "move", *steps]:
            world.do(step, data)
            world.check()
