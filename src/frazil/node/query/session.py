"""SQL over topics: the table and the rows that are not moved yet, as one relation, with DuckDB.

A topic `/shop/orders` is the table `shop.orders`; topics in namespace `default` need no namespace. Rows that only the
log has are read from it, so that a message can be queried as soon as it was acknowledged. A query of an older snapshot
sees the table alone.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Self

import duckdb
import pyarrow as pa

from frazil.core.errors import (
    CorruptLog,
    FrazilError,
    InvalidInput,
    OffsetOutOfRange,
    QueryTooLarge,
    TableRefused,
    TryLater,
)
from frazil.core.names import TopicName
from frazil.core.rows import OFFSET
from frazil.core.settings import Settings
from frazil.lake.catalogs.opening import catalog_exists, open_catalog
from frazil.lake.read.queryable import CommittedEnd, Queryable, committed_end, queryable, unreadable
from frazil.lake.tables.schema import PARTITION, TableName, table_of, topic_of
from frazil.log.info import LogInfo
from frazil.node.query.checks import Doubt
from frazil.node.query.log_rows import LogRows, check_not_ahead, plain_rows
from frazil.node.query.parse import DEFAULT_NAMESPACE, PLAIN_CONFIG, parse
from frazil.node.query.readable import Readable, everything
from frazil.node.query.relation import PlaceColumns, RelationPart, parquet, quoted, select, shown_names, text, union
from frazil.node.query.spool import Streamed, TemporarySpace, spool
from frazil.node.query.telemetry import RequestTopic, holds_requests, lifted_of, own_table
from frazil.node.tiers.cluster_logs import ClusterLogs
from frazil.node.tiers.logs import LogView, listed

BATCH_ROWS_MAX = 10_000
BATCH_BYTES_TARGET = 32 << 20
UNPACKED_FACTOR = 4
"""Memory of a row as a multiple of its size in a Parquet file."""
CONFINED_MIB_MAX = 1_024
DUCKDB_MIB_MAX = 640
"""DuckDB's share of the memory; the rest is for Python, Arrow and what DuckDB does not count."""
SPACE_BYTES_MAX = 8 << 30
SPACE_SHARE = 8
"""A query may use an eighth of the free space: four at once leave half of it to the log."""
ATTEMPTS_MAX = 3
_PERHAPS_MOVED = (CorruptLog, OSError, OffsetOutOfRange, TryLater)
"""Errors of rows that may be in the table by now, or at another broker."""
_PERHAPS_OF_A_FILE = (duckdb.IOException, duckdb.InvalidInputException, pa.ArrowException, OSError)


@dataclass(frozen=True, slots=True)
class AsOf:
    """A past snapshot, by id or by time; neither means now, with the log."""

    snapshot_id: int | None = None
    at: datetime | None = None

    @property
    def is_now(self) -> bool:
        return self.snapshot_id is None and self.at is None


@dataclass(frozen=True, slots=True)
class Answer:
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


class SqlSession:
    """One query over topics and tables. `close` interrupts it.

    A confined, empty connection parses the query. The connection that runs it has its limits from the start, and a
    `confined` session sees only the files of the tables that the query names. Tables that the caller may not read are
    missing tables.
    """

    def __init__(
        self,
        settings: Settings,
        logs: LogView,
        as_of: AsOf | None = None,
        *,
        confined: bool = False,
        may_read: Readable = everything,
    ) -> None:
        """`may_read` decides which tables there are for the caller."""
        self._may_read = may_read
        self._logs = logs
        self._settings = settings
        self._as_of = as_of or AsOf()
        self._confined = confined
        self._paths: list[str] = []
        self._tables: list[Queryable] = []
        self._doubts: list[Doubt] = []
        self._failed: FrazilError | None = None
        self._row_bytes = 0
        self._folder = tempfile.TemporaryDirectory(prefix="frazil-sql-", ignore_cleanup_errors=True)
        self._space = _space(Path(self._folder.name))
        pool = ThreadPoolExecutor(1, thread_name_prefix="frazil-sql")
        self._connecting = pool.submit(_connect, self._space, confined=confined)  # slow, and without Python's lock
        pool.shutdown(wait=False)
        try:
            self._catalog = open_catalog(settings) if catalog_exists(settings) else None
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._duck.close()
        self._folder.cleanup()

    def run(self, query: str) -> Answer:
        """Return the result as it streams. Raises `InvalidInput` for a wrong query, also while it runs."""
        with self._converted_errors():
            parsed = parse(query, confined=self._confined)
            for name in sorted(parsed.tables):
                self._make_view(name, in_three=name in parsed.in_three)
            for name in sorted(parsed.perhaps):
                self._make_view(name, needed=False)
            self._lock()
            for doubt in self._doubts:
                doubt.check(self._duck)
            reader = self._duck.sql(query).to_arrow_reader(self._batch_rows())
        return Answer(reader.schema, self._batches(reader))

    @property
    def _duck(self) -> duckdb.DuckDBPyConnection:
        return self._connecting.result()

    def _batch_rows(self) -> int:
        """DuckDB splits a result by rows: potentially large rows are fetched few at a time."""
        return max(1, min(BATCH_ROWS_MAX, BATCH_BYTES_TARGET // max(1, self._row_bytes)))

    def _lock(self) -> None:
        """Lock the configuration: the query can change no setting, and if confined opens only the
        files of its tables."""
        self._duck.execute(f"SET max_temp_directory_size = '{self._space.left_bytes >> 20}MiB'")
        if self._confined:
            files = ", ".join(text(path) for path in self._paths)
            self._duck.execute("SET http_proxy = ''")  # the environment's value may contain a password
            self._duck.execute(f"SET allowed_paths = [{files}]")
            self._duck.execute("SET enable_external_access = false")
        self._duck.execute("SET lock_configuration = true")

    def _batches(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        with self._converted_errors():
            yield from reader

    @contextlib.contextmanager
    def _converted_errors(self) -> Iterator[None]:
        """Convert DuckDB's errors to one line; errors while fetching rows arrive as Arrow's."""
        try:
            yield
        except MemoryError:
            raise self._too_large("") from None
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            said = " ".join(str(error).split())
            if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory Error" in said or "bad_alloc" in said:
                raise self._too_large(said) from None
            raise self._failure(error) or InvalidInput(f"sql: {said}") from None

    def _failure(self, error: Exception) -> FrazilError | None:
        """Return the error of the table that caused a query's failure, if that is the cause."""
        if self._failed is not None or not isinstance(error, _PERHAPS_OF_A_FILE):
            return self._failed
        return next((lost for table in self._tables if (lost := table.lost()) is not None), None)

    def _too_large(self, text: str) -> QueryTooLarge:
        if "max_temp_directory_size" in text:
            return QueryTooLarge("temporary space", f"{self._space.bytes_max >> 20} MiB")
        return QueryTooLarge("memory", f"{CONFINED_MIB_MAX} MiB" if self._confined else "DuckDB's memory_limit")

    # --- a topic as a relation

    def _make_view(self, name: TableName, *, needed: bool = True, in_three: bool = False) -> None:
        found = self._relation(name)
        if found is None and not needed:
            return
        if found is None:
            raise InvalidInput(f"sql: there is no topic or table {name}; see `frazil topics list`", table=str(name))
        self._duck.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(name.namespace)}")
        self._duck.execute(f"CREATE VIEW {quoted(name.namespace)}.{quoted(name.table)} AS {found}")
        if name.namespace == DEFAULT_NAMESPACE:
            self._duck.execute(f"CREATE VIEW {quoted(name.table)} AS {found}")
        if in_three:  # DuckDB takes the first part for a database
            database, _, schema = name.namespace.partition(".")
            place = f"{quoted(database)}.{quoted(schema)}"
            self._duck.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {quoted(database)}")
            self._duck.execute(f"CREATE SCHEMA IF NOT EXISTS {place}")
            self._duck.execute(f"CREATE VIEW {place}.{quoted(name.table)} AS {found}")

    def _relation(self, name: TableName) -> str | None:
        """Return the SELECT of a topic; a name like `orders-part-0` is one partition of it. None if there is no such
        topic."""
        table, only = table_of(TopicName(name.namespace, name.table))
        if table == name:
            return self._relation_of(name, None)
        return self._relation_of(table, only) or self._relation_of(name, None)

    def _relation_of(self, name: TableName, only: int | None) -> str | None:
        """Rows that were moved and removed before they were read from the log are missed: then everything is loaded
        again."""
        if not self._may_read(name):  # before anything is looked up
            return None
        for attempt in range(ATTEMPTS_MAX):
            logs, table = self._look(name, only)
            if table is not None and not self._may_read(table.name):
                return None
            if table is None and not logs:
                return None
            if only is not None and not logs and not (table is not None and table.held.ranges):
                return None
            adding = [one for one in logs if one.adds_to(table)]
            shown = shown_names(
                [
                    *([] if table is None else table.schema.names),
                    *(column for one in adding for column in one.columns.names),
                ]
            )
            try:
                tail = [self._log_part(name, one, shown) for one in adding]
            except _PERHAPS_MOVED:
                if attempt == ATTEMPTS_MAX - 1:
                    raise
                continue
            own = [] if table is None else [self._table_part(name, table, shown)]
            if table is not None and table.doubtful:
                rows, places = select(own[0], shown), _places(table, shown)
                self._doubts += [
                    Doubt(name, rows, places, partition, table.held.within(partition, offsets))
                    for partition, offsets in table.doubtful
                ]
            return union([*own, *tail], shown)
        raise AssertionError("the last attempt returns or raises")

    def _look(self, name: TableName, only: int | None) -> tuple[Sequence[LogRows], Queryable | None]:
        """Ask the logs before the tables: rows that move meanwhile are in a table, and in no log's part."""
        own = own_table(name) if only is None and self._as_of.is_now else None
        source = None if own is None or not self._may_read(own) else self._requests_of(name, own)
        if source is not None:
            again = functools.partial(self._logs_of, source.own, 0)
            infos, table = self._with_table(name, {0: source.info}, None, again, requests_end=source.committed.end)
            return [source.rows(info, name, table) for info in infos], table
        logs = self._logs_of(name, only) if self._as_of.is_now else {}
        infos, table = self._with_table(name, logs, only, lambda: self._logs_of(name, only))
        if own is not None and table is not None and table.held.several_per_offset and not self._may_read(own):
            return [], None  # its rows in the log are in a topic that the caller may not read
        return [plain_rows(info, table) for info in infos], table

    def _requests_of(self, name: TableName, own: TableName) -> RequestTopic | None:
        """Return the topic of requests that have rows in a table; None if there is none."""
        info = self._logs_of(own, 0).get(0)
        if info is None or not holds_requests(info):
            return None
        committed = CommittedEnd()
        if own != name and self._catalog is not None:
            committed = committed_end(self._catalog, own, info.log_id)
            check_not_ahead(own, {info.log_id: committed.end}, [info], lambda: self._logs_of(own, 0))
        return RequestTopic(info, own, committed, lifted_of(self._settings, own))

    def _with_table(
        self,
        name: TableName,
        logs: Mapping[int, LogInfo],
        only: int | None,
        again: Callable[[], dict[int, LogInfo]],
        *,
        requests_end: int | None = None,
    ) -> tuple[Sequence[LogInfo], Queryable | None]:
        """Return the logs whose rows count beside those of the table. `again` asks for the logs again."""
        table = None
        if self._catalog is not None:
            live = {partition: info.log_id for partition, info in logs.items()}
            former = {info.log_id: [one.log_id for one in info.former] for info in logs.values()}
            starts = {info.log_id: info.held_from for info in logs.values()}
            at = (self._as_of.snapshot_id, self._as_of.at)
            table = queryable(self._catalog, name, live, *at, only, former, starts, requests_end=requests_end)
        if table is None:
            return list(logs.values()), None
        if table.held.transformed:
            return [], table
        if logs and table.held.ranges == {} and not any(info.log_id in table.logs for info in logs.values()):
            return list(logs.values()), None  # it belongs to an earlier topic: neither its rows nor its columns count
        check_not_ahead(name, table.held.by_log, logs.values(), again)
        return list(logs.values()), table

    def _table_part(self, name: TableName, table: Queryable, shown: Mapping[str, str]) -> RelationPart:
        """Return the source: the files themselves if DuckDB can read them."""
        self._row_bytes = max(self._row_bytes, UNPACKED_FACTOR * table.row_bytes)
        self._tables.append(table)
        names = table.schema.names
        own = {column: shown[column] for column in names}

        def part(source: str, columns: Mapping[str, str]) -> RelationPart:
            filtered = table.filtered and table.held.ranges is not None
            return RelationPart(
                source, columns, _places(table, columns).only_in(table.held.ranges or {}) if filtered else ""
            )

        if table.paths:
            self._paths += table.paths
            columns = [(number, own[column], kind) for column, (number, kind) in zip(names, table.types, strict=True)]
            return part(parquet(table.paths, columns), own)
        source = f"{name} in its table"
        if table.dataset is not None:
            self._duck.register(source, table.dataset)
            return part(quoted(source), dict(zip(names, table.dataset.schema.names, strict=True)))
        schema = pa.schema([field.with_name(own[field.name]) for field in table.schema])
        if table.rows is not None:
            self._duck.register(source, Streamed(schema, functools.partial(self._rows, name, table.rows, schema)))
        else:
            self._duck.register(source, schema.empty_table())
        return part(quoted(source), own)

    def _rows(
        self, name: TableName, rows: Callable[[], Iterator[pa.RecordBatch]], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Keep the error itself: DuckDB passes on only its text."""
        assert self._catalog is not None
        try:
            for batch in rows():
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
        except Exception as error:
            self._failed = unreadable(name, error, self._catalog.properties)
            raise

    def _log_part(self, table: TableName, log: LogRows, shown: Mapping[str, str]) -> RelationPart:
        """Return the rows that the table does not have. An empty part still contributes its columns."""
        source = f"{table} in the log {log.info.log_id}"
        own = {column: shown[column] for column in log.columns.names}
        schema = pa.schema([field.with_name(own[field.name]) for field in log.columns])
        rows = spool(self._space, schema, log.read(self._logs, table, schema))
        self._row_bytes = max(self._row_bytes, rows.nbytes // max(1, rows.num_rows))
        self._duck.register(source, rows)
        return RelationPart(quoted(source), own)

    def _logs_of(self, name: TableName, only: int | None) -> dict[int, LogInfo]:
        found: dict[int, LogInfo] = {}
        logs, base = self._logs, topic_of(name, 0)
        listing = logs.of(base) if isinstance(logs, ClusterLogs) else listed(logs, self._settings.log_folder, base)
        for info in listing:
            partition = table_of(info.topic)[1]
            if only not in (None, partition):
                continue
            if partition in found:
                raise TableRefused(
                    f"{found[partition].topic} and {info.topic} are both partition {partition} of {name};"
                    " delete one of them, or publish its rows to another topic",
                    table=str(name),
                )
            found[partition] = info
        return found


def _space(folder: Path) -> TemporarySpace:
    return TemporarySpace(folder, min(SPACE_BYTES_MAX, shutil.disk_usage(folder).free // SPACE_SHARE))


def _connect(space: TemporarySpace, *, confined: bool) -> duckdb.DuckDBPyConnection:
    limits = {"memory_limit": f"{DUCKDB_MIB_MAX}MiB"} if confined else {}
    duck = duckdb.connect(config={**PLAIN_CONFIG, **limits, "temp_directory": str(space.folder / "duckdb")})
    duck.execute("SET TimeZone = 'UTC'")
    return duck


def _places(table: Queryable, columns: Mapping[str, str]) -> PlaceColumns:
    """`columns` maps the table's columns to a source's names."""
    partition, offset = table.columns.in_table_names(pa.schema([PARTITION, OFFSET])).names
    return PlaceColumns(columns[partition], columns[offset])
