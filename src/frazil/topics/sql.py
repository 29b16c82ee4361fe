"""SQL over topics: the table and what is not yet in it, as one relation, by DuckDB.

A topic `/shop/orders` is the table `shop.orders`; those of namespace `default` need no namespace. What the log has
beyond the table is read from it, so that a message can be queried as soon as it was acknowledged. A view of an older
snapshot is of the table alone.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Self

import duckdb
import pyarrow as pa

from frazil.core.errors import CorruptLog, FrazilError, InvalidInput, RowsMissing
from frazil.core.offsets import OffsetRange
from frazil.core.rows import OFFSET
from frazil.core.settings import Settings
from frazil.lake.catalog import is_there, open_catalog
from frazil.lake.queryable import Queryable, queryable
from frazil.lake.tables import PARTITION, TableName, table_of, table_rows
from frazil.log.info import LogInfo
from frazil.topics.logs import LogView

DEFAULT_NAMESPACE = "default"
BATCH_ROWS = 10_000
CONFINED_MIB_MAX = 1_024
ATTEMPTS_MAX = 3

_PART = r'(?:"(?:[^"]|"")*"|[^".\s]+)'
_MENTIONED = re.compile(rf"\b(?:from|join)\s+(?:(?P<namespace>{_PART})\.)?(?P<table>{_PART})", re.IGNORECASE)
_NAME = re.compile(rf"(?:(?P<namespace>{_PART})\.)?(?P<table>{_PART})(?: AS .*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class AsOf:
    """A snapshot of the past, by its id or by a time; neither means now, with the log."""

    snapshot_id: int | None = None
    at: datetime | None = None

    @property
    def is_now(self) -> bool:
        return self.snapshot_id is None and self.at is None


@dataclass(frozen=True, slots=True)
class Answer:
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


Looked = tuple[Sequence[LogInfo], Queryable | None]


class SqlSession:
    """One connection. `close` interrupts what runs. A `confined` one sees topics and tables and no other file, and
    takes no more memory than it may; after its query it answers no other."""

    def __init__(self, settings: Settings, logs: LogView, as_of: AsOf | None = None, *, confined: bool = False) -> None:
        self._logs = logs
        self._as_of = as_of or AsOf()
        self._confined = confined
        self._paths: list[str] = []
        pool = ThreadPoolExecutor(1, thread_name_prefix="frazil-sql")
        self._connecting = pool.submit(_connect)  # takes as long as a look at a table, and without Python's lock
        pool.shutdown(wait=False)
        self._catalog = open_catalog(settings) if is_there(settings) else None
        self._known: set[TableName] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._duck.close()

    def run(self, query: str) -> Answer:
        """The answer as it comes. `InvalidInput` for what is wrong with the query, also once it runs."""
        looked = {} if self._connecting.done() else self._look_ahead(query)
        with _told():
            for name in self._tables_in(query):
                self._make_view(name, looked.get(name))
            if self._confined:
                self._confine()
            reader = self._duck.sql(query).to_arrow_reader(BATCH_ROWS)
        return Answer(reader.schema, _batches(reader))

    @property
    def _duck(self) -> duckdb.DuckDBPyConnection:
        return self._connecting.result()

    def _look_ahead(self, query: str) -> dict[TableName, Looked]:
        """Tables that the query seems to name, looked at while DuckDB starts. What it really names only DuckDB knows:
        a look too many is forgotten, and what went wrong with one is told by the look that follows."""
        looked = {}
        for found in _MENTIONED.finditer(query):
            name = TableName(_plain(found["namespace"] or DEFAULT_NAMESPACE), _plain(found["table"]))
            with contextlib.suppress(FrazilError, OSError):
                looked[name] = self._look(name)
        return looked

    def _tables_in(self, query: str) -> list[TableName]:
        kinds = [statement.type for statement in self._duck.extract_statements(query)]
        if kinds not in ([duckdb.StatementType.SELECT], [duckdb.StatementType.EXPLAIN]):
            raise InvalidInput("sql: give one SELECT; topics are changed by publishing to them")
        return sorted({_parsed(name) for name in self._duck.get_table_names(query, qualified=True)})

    def _confine(self) -> None:
        """By the locks that DuckDB has for queries of strangers. What memory does not hold goes to temporary files."""
        files = ", ".join(_text(path) for path in self._paths)
        settings = (
            f"memory_limit = '{CONFINED_MIB_MAX}MiB'",
            f"temp_directory = {_text(tempfile.gettempdir())}",
            f"allowed_paths = [{files}]",
            "enable_external_access = false",
            "lock_configuration = true",
        )
        for setting in settings:
            self._duck.execute(f"SET {setting}")

    # --- a topic as a relation

    def _make_view(self, name: TableName, looked: Looked | None) -> None:
        if name in self._known:
            return
        parts = self._parts(name, looked)
        if not parts:
            raise InvalidInput(f"sql: there is no topic or table {name}; see `frazil topics list`", table=str(name))
        select = " UNION ALL BY NAME ".join(f"SELECT * FROM {part}" for part in parts)  # noqa: S608 - quoted names
        self._duck.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(name.namespace)}")
        self._duck.execute(f"CREATE VIEW {_quoted(name.namespace)}.{_quoted(name.table)} AS {select}")
        if name.namespace == DEFAULT_NAMESPACE:
            self._duck.execute(f"CREATE VIEW {_quoted(name.table)} AS {select}")
        self._known.add(name)

    def _look(self, name: TableName) -> Looked:
        """The logs are asked before the table: what moves meanwhile is in the table, and in no log's part."""
        logs = self._logs_of(name) if self._as_of.is_now else []
        return logs, self._table(name)

    def _parts(self, name: TableName, looked: Looked | None) -> list[str]:
        """What is moved *and* removed before it was read from the log is missed, and all is looked at again."""
        for attempt in range(ATTEMPTS_MAX):
            logs, table = looked if looked is not None else self._look(name)
            looked = None
            try:
                tail = [
                    self._log_part(info, {} if table is None else table.ends) for info in logs if _adds(info, table)
                ]
            except (CorruptLog, OSError):
                if attempt == ATTEMPTS_MAX - 1:
                    raise
                continue
            return ([] if table is None else [self._table_part(name, table)]) + tail
        raise AssertionError("the last attempt returns or raises")

    def _table(self, name: TableName) -> Queryable | None:
        if self._catalog is None:
            return None
        return queryable(self._catalog, name, self._as_of.snapshot_id, self._as_of.at)

    def _table_part(self, name: TableName, table: Queryable) -> str:
        """What to select from: the files themselves where DuckDB can read them."""
        if table.paths:
            self._paths += table.paths
            files = ", ".join(_text(path) for path in table.paths)
            by_name = "false" if table.same_columns else "true"
            return f"read_parquet([{files}], hive_partitioning = false, union_by_name = {by_name})"
        part = f"{name} in its table"
        if table.dataset is not None:
            self._duck.register(part, table.dataset)
        elif table.rows is not None:
            self._keep(part, pa.RecordBatchReader.from_batches(table.schema, table.rows()))
        else:
            self._duck.register(part, table.schema.empty_table())
        return _quoted(part)

    def _log_part(self, info: LogInfo, ends: dict[str, int]) -> str:
        """The rows that the table does not have; none are as good as some, they have the columns."""
        end = ends.get(info.log_id, 0)
        if end and info.first_offset > end:
            raise RowsMissing(str(info.topic), str(table_of(info.topic)[0]), end, info.first_offset)
        name, partition = f"{info.topic} in its log", table_of(info.topic)[1]
        stored = pa.ipc.read_schema(pa.py_buffer(info.stored_schema))
        start = max(end, info.first_offset)
        batches: Iterator[pa.RecordBatch] = iter(())
        if start < info.durable_end:
            rest = OffsetRange(start, info.durable_end)
            batches = (table_rows(rows, partition) for rows in self._logs.read(info, rest))
        self._keep(name, pa.RecordBatchReader.from_batches(pa.schema([OFFSET, PARTITION, *stored]), batches))
        return _quoted(name)

    def _logs_of(self, name: TableName) -> Sequence[LogInfo]:
        return [info for info in self._logs.logs() if table_of(info.topic)[0] == name]

    def _keep(self, part: str, reader: pa.RecordBatchReader) -> None:
        """Rows that come only once are kept by DuckDB, which puts them on disk if they are many."""
        self._duck.register("coming", reader)
        self._duck.execute(f"CREATE OR REPLACE TEMP TABLE {_quoted(part)} AS SELECT * FROM coming")  # noqa: S608 - a quoted name
        self._duck.unregister("coming")


def _connect() -> duckdb.DuckDBPyConnection:
    duck = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    duck.execute("SET TimeZone = 'UTC'")
    return duck


def _adds(info: LogInfo, table: Queryable | None) -> bool:
    """Whether a log has rows or columns that the table lacks: DuckDB counts files alone by their footers."""
    if table is None or table.ends.get(info.log_id, 0) != info.durable_end:
        return True
    stored = pa.ipc.read_schema(pa.py_buffer(info.stored_schema))
    return not set(stored.names) <= set(table.schema.names)


def _batches(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    with _told():
        yield from reader


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """DuckDB's errors on one line; those that come while rows are fetched come as Arrow's."""
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        raise InvalidInput(f"sql: {' '.join(str(error).split())}") from None


def _parsed(text: str) -> TableName:
    found = _NAME.fullmatch(text)
    if found is None:
        raise InvalidInput(f"sql: {text} is not the name of a topic; write namespace.topic")
    return TableName(_plain(found["namespace"] or DEFAULT_NAMESPACE), _plain(found["table"]))


def _plain(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
