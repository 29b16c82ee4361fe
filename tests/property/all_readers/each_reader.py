"""What each reader says of a topic, in one form: rows by partition and offset, by the topic's names of its columns.

Members of structs are compared by their place, so that names which another engine gave them do not matter.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructType
from topic_history import CONFIG, TOPIC, History

import frazil
from frazil.core.coverage import without
from frazil.core.offsets import OffsetRange
from frazil.lake.read.history import TableHistories
from frazil.lake.tables.schema import table_of
from frazil.lake.tables.token import ends, gaps
from frazil.node.query.relation import file_pattern, shown_names, text
from frazil.node.query.session import SqlSession
from frazil.node.read_only import open_read_only
from frazil.node.tiers.logs import FileView
from frazil.pipeline.source.options import parse_options
from frazil.pipeline.source.source import BatchSourceReader, FrazilSource, StreamSourceReader

Place = tuple[int, int]
Rows = dict[Place, dict[str, Any]]

FROM_MESSAGES = {"_key": "key", "_payload": "value", "_append_time": "timestamp"}
"""The columns of messages in the Spark source."""


def comparable(value: Any) -> Any:
    """Equal when the values are, whichever engine read them."""
    if isinstance(value, dict):
        return [comparable(each) for each in value.values()]
    if isinstance(value, list | tuple):
        return [comparable(each) for each in value]
    if isinstance(value, float) and (math.isnan(value) or value == 0):
        return repr(value)  # NaN equals itself, and -0.0 is not 0.0
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(timezone.utc)
    return value


def collected(found: Iterable[tuple[Place, dict[str, Any]]]) -> Rows:
    rows: Rows = {}
    for place, row in found:
        assert place not in rows, f"{place} is there twice"
        rows[place] = {name: comparable(value) for name, value in row.items()}
    return rows


class Readers:
    def __init__(self, history: History) -> None:
        self._of = history

    def _partition(self, name: str) -> int:
        return table_of(self._of.topic(name).log.name)[1]

    def _stored(self) -> list[str]:
        return list(self._of.topic(self._of.names[0]).log.schema.names)

    # --- the topic's own readers

    def owner(self) -> Rows:
        return collected(
            ((self._partition(name), row.pop("_offset")), row)
            for name in self._of.names
            for batch in self._of.topic(name).read_batches("earliest")
            for row in batch.to_pylist()
        )

    def table_refusals(self) -> list[frazil.FrazilError]:
        """Why the table can't be read, also where the log still has all that it holds."""
        found = []
        for name in self._of.names:
            log = self._of.topic(name).log
            history = TableHistories(self._of.settings).of(log.name, log.log_id)
            if history is None:
                continue
            try:
                list(history.read(0, 2**62, log.schema))
            except frazil.FrazilError as error:
                found.append(error)
        return found

    def held(self) -> dict[int, list[OffsetRange]]:
        """By partition the offsets of the present logs that the table must have."""
        table = self._of.table()
        found = {}
        for name in [] if table is None else self._of.names:
            log_id, end = self._of.topic(name).log.log_id, 0
            assert table is not None
            end = ends(table).get(log_id, 0)
            if end:
                found[self._partition(name)] = without(OffsetRange(0, end), gaps(table, log_id))
        return found

    def uploaded(self) -> dict[int, list[OffsetRange]]:
        """By partition the offsets in objects."""
        return {
            self._partition(name): [
                one.range for one in self._of.uploads.of(self._of.topic(name).log).load().all() if one.range is not None
            ]
            for name in self._of.names
        }

    def accepted(self) -> set[Place]:
        """Rows that a person has accepted as missing from the table."""
        table = self._of.table()
        return {
            (self._partition(name), offset)
            for name in ([] if table is None else self._of.names)
            for gap in gaps(table, self._of.topic(name).log.log_id)
            for offset in range(gap.start, gap.end)
        }

    def without_owner(self) -> Rows:
        """Of the logs that the table has rows of: from table and objects."""
        held = self.held()
        with open_read_only(self._of.settings) as tables:
            return collected(
                ((self._partition(name), row["_offset"]), {each: row.get(each) for each in self._stored()})
                for name in self._of.names
                if self._partition(name) in held
                for batch in tables.topic(name).read_batches("earliest")
                for row in batch.to_pylist()
            )

    def sql(self) -> Rows:
        rows = self.ask("select * from shop.orders")
        table = self._of.table() if self._of.is_of_the_topic() else None
        names = [] if table is None else [field.name for field in table.schema().fields]
        called = {
            name: name if table is None else self._of.column(table, name)
            for name in ("_offset", "_topic_partition", *self._stored())
        }
        shown = shown_names([*names, *called.values()])
        of = {name: shown[there] for name, there in called.items()}
        found = collected(
            ((row[of["_topic_partition"]], row[of["_offset"]]), {name: row[of[name]] for name in self._stored()})
            for row in rows
        )
        assert self.ask("select count(*) as rows from shop.orders") == [{"rows": len(found)}]
        return found

    def ask(self, query: str) -> list[dict[str, Any]]:
        with SqlSession(self._of.settings, FileView(self._of.settings)) as session:
            return [row for batch in session.run(query).batches for row in batch.to_pylist()]

    # --- the Spark source, as Spark drives it

    def source_options(self, **given: str) -> dict[str, str]:
        data = self._of.settings.data
        assert data is not None
        return {"subscribe": TOPIC, "data": str(data), "config": str(data.parent / CONFIG), **given}

    def spark_schema(self) -> StructType | None:
        """None where names differ in case alone: Spark can't tell the columns apart."""
        taken = [name.lower() for name in self._stored()]
        if self._of.schema is not None and len(set(taken)) < len(taken):
            return None
        return FrazilSource(self.source_options()).schema()

    def spark_batch(self, schema: StructType, **given: str) -> Rows:
        reader = _sent(BatchSourceReader(parse_options(self.source_options(**given)), schema))
        tasks = [_sent(task) for task in reader.partitions()]
        return self.from_source(pa.Table.from_batches(batch) for task in tasks if (batch := list(reader.read(task))))

    def spark_stream(self, schema: StructType, rows: int) -> Rows:
        """Some rows at a time, until there are as many as there should be, or nothing more comes."""
        reader = StreamSourceReader(parse_options(self.source_options(maxOffsetsPerTrigger="3")), schema)
        at, found = reader.initialOffset(), []
        for _ in range(rows + 1):
            end = reader.latestOffset()
            if end == at:
                break
            found += [pa.Table.from_batches(list(reader.read(task))) for task in reader.partitions(at, end)]
            at = end
        return self.from_source(found)

    def from_source(self, tables: Iterable[pa.Table]) -> Rows:
        """The topic's columns out of what the source gives."""
        own = {name.lower() for name in self._stored()}
        if self._of.schema is None:
            names = FROM_MESSAGES
        else:
            names = {name: name for name in self._of.schema.names}
            names["_append_time"] = "_timestamp" if "timestamp" in own else "timestamp"
        taken = {
            name: f"_{name}" if self._of.schema is not None and name in own else name
            for name in ("partition", "offset")
        }
        return collected(
            ((row[taken["partition"]], row[taken["offset"]]), {name: row[there] for name, there in names.items()})
            for table in tables
            for row in rows_of(table)
        )

    # --- engines that know nothing of Frazil

    def counted(self, rows: Iterable[dict[str, Any]]) -> Rows:
        """Those of a table's rows, by the topic's names, that are rows of the present logs."""
        held = self.held()
        return collected(
            ((row["_topic_partition"], row["_offset"]), {name: row.get(name) for name in self._stored()})
            for row in rows
            if any(one.start <= row["_offset"] < one.end for one in held.get(row["_topic_partition"], []))
        )

    def pyiceberg(self) -> Rows:
        table = self._of.table()
        assert table is not None
        names = [self._of.ids.get(field.field_id, str(field.field_id)) for field in table.schema().fields]
        return self.counted(rows_of(table.scan().to_arrow().rename_columns(names)))

    def duckdb(self) -> Rows | None:
        """Each file of the current snapshot by the field ids of its own columns, as a plain user would read it.

        None where a file beside them says that rows are deleted: a plain user would not know.
        """
        table = self._of.table()
        assert table is not None
        tasks = list(table.scan().plan_files())
        if any(task.delete_files for task in tasks):
            return None
        paths = [_path(task.file.file_path) for task in tasks]
        rows: list[dict[str, Any]] = []
        with duckdb.connect() as duck:
            duck.execute("SET TimeZone = 'UTC'")
            for path in paths:
                query = f"SELECT * FROM read_parquet({text(file_pattern(path))}, hive_partitioning = false)"
                found = duck.sql(query).to_arrow_table()
                numbers = [int(field.metadata[b"PARQUET:field_id"]) for field in pq.read_schema(path)]
                rows += rows_of(found.rename_columns([self._of.ids.get(number, str(number)) for number in numbers]))
        return self.counted(rows)


def _path(location: str) -> str:
    """Of a local file. Iceberg's own library has locations without a scheme as well, and neither escapes anything."""
    return location.removeprefix("file://").removeprefix("file:")


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Also of tables with two columns of one name, such as those of strangers."""
    columns = [column.to_pylist() for column in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _sent(value: Any) -> Any:
    """As it comes to a task."""
    return pickle.loads(pickle.dumps(value))
