"""A table in a form that another engine can query: its files by field ids, or its rows if the files alone would
mislead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io.pyarrow import PyArrowFileIO, pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, FileScanTask, Table

from frazil.core.errors import FrazilError, InvalidInput, LakeUnavailable, TableDamaged, TryLater
from frazil.core.offsets import OffsetRange
from frazil.core.rows import OFFSET
from frazil.lake.catalogs.error_text import reason
from frazil.lake.read.duck_columns import duck_types, has_structs
from frazil.lake.read.offset_files import bounds
from frazil.lake.tables.field_ids import named
from frazil.lake.tables.held_rows import FileChoice, HeldRows, PartitionRange, choose_files, held_rows
from frazil.lake.tables.schema import TableName, topic_of
from frazil.lake.tables.token import check_handed_over, derived_ends, logs, read_token, refuse_newer_format
from frazil.lake.tables.topic_columns import TopicColumns

FOOTER_READS_MAX = 8


@dataclass(frozen=True, slots=True)
class Queryable:
    """One of `paths`, `dataset` and `rows`, or none if the table has no valid rows.

    Paths of local files are for DuckDB, which finds each column of `schema` by its field id, with its type in `types`.
    A dataset is for stores that only this process can reach; it has the columns of `schema` in the same order, under
    the names in the files. Rows are for tables whose files are insufficient: rows deleted by separate files, or columns
    with several names in the files.
    """

    name: TableName
    """As the catalog has it: some catalogs find a table by its name in any case."""
    schema: pa.Schema
    held: HeldRows
    columns: TopicColumns
    """Maps the table's column names to the topic's columns."""
    logs: frozenset[str]
    """The logs that the table has, or had, rows of."""
    paths: tuple[str, ...] = ()
    types: tuple[tuple[int, str], ...] = ()
    dataset: ds.Dataset | None = None
    rows: Callable[[], Iterator[pa.RecordBatch]] | None = None
    filtered: bool = False
    """Whether the valid rows must be selected by partition and offset."""
    doubtful: Sequence[PartitionRange] = ()
    """Offsets that may be missing or duplicated, according to the files' statistics."""
    row_bytes: int = 0
    """Mean size of a row in its files, compressed."""
    lost: Callable[[], FrazilError | None] = lambda: None
    """Returns the problem of the first file that is not as written; called when a query fails."""


def queryable(
    catalog: Catalog,
    name: TableName,
    live: Mapping[int, str],
    snapshot_id: int | None = None,
    at: datetime | None = None,
    only: int | None = None,
    former: Mapping[str, Sequence[str]] | None = None,
    log_starts: Mapping[str, int] | None = None,
    *,
    requests_end: int | None = None,
) -> Queryable | None:
    """Return the valid rows of the table, now or at a snapshot; None if there is no table.

    `live` are the available logs by partition, `only` the one requested partition, `former` the logs that a log has
    replaced, `log_starts` the first offset of each log. `requests_end` is for logs of requests, see `held_rows`.
    """
    try:
        table = catalog.load_table(name.identifier)
        refuse_newer_format(table)
        for log_id, earlier in (former or {}).items():
            check_handed_over(table, log_id, earlier)
        snapshot_id = _snapshot(table, snapshot_id, at)
        ours = named(table)
        held = HeldRows(None)
        if snapshot_id is None:
            held = held_rows(ours, live, only, log_starts, requests_end=requests_end)
        return _found(table, table.scan(snapshot_id=snapshot_id), held)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None
    except FrazilError:
        raise
    except Exception as error:
        raise unreadable(name, error, catalog.properties) from error


@dataclass(frozen=True, slots=True)
class CommittedEnd:
    """The offset up to which a table holds a log, and what it recorded of the tables derived from its topic."""

    end: int = 0
    derived: Mapping[str, int] = field(default_factory=dict)
    """By the name of a derived table: the last end at which it got rows."""


def committed_end(catalog: Catalog, name: TableName, log_id: str) -> CommittedEnd:
    """Return how far a topic's own table is; 0 if there is no table, or none of the log."""
    try:
        table = catalog.load_table(name.identifier)
        token = read_token(table, log_id)
    except (NoSuchTableError, NoSuchNamespaceError):
        return CommittedEnd()
    except FrazilError:
        raise
    except Exception as error:
        raise unreadable(name, error, catalog.properties) from error
    return CommittedEnd() if token is None else CommittedEnd(token.end, derived_ends(table, log_id))


def unreadable(name: TableName, error: Exception, known: Mapping[str, Any]) -> FrazilError:
    """Convert an error for readers: a referenced file is missing, or the lake is unavailable."""
    if isinstance(error, FrazilError):
        return error
    why = reason(error, known)
    if isinstance(error, pa.ArrowInvalid | FileNotFoundError | NotImplementedError | KeyError | ValueError):
        return TableDamaged(str(name), str(name), 0, why)
    return LakeUnavailable("catalog", f"{name} cannot be read: {why}")


def _snapshot(table: Table, snapshot_id: int | None, at: datetime | None) -> int | None:
    name = ".".join(table.name())
    if at is not None:
        found = table.snapshot_as_of_timestamp(int(at.timestamp() * 1_000))
        if found is None:
            raise InvalidInput(f"--at: {name} has no snapshot that old", table=name)
        return found.snapshot_id
    if snapshot_id is not None and table.snapshot_by_id(snapshot_id) is None:
        known = ", ".join(str(each.snapshot_id) for each in table.metadata.snapshots[-5:])
        raise InvalidInput(f"--snapshot: {name} has no snapshot {snapshot_id}; the newest are {known}", table=name)
    return snapshot_id


def _found(table: Table, scan: DataScan, held: HeldRows) -> Queryable:
    projection = scan.projection()
    schema = schema_to_pyarrow(projection, include_field_ids=False)
    name = TableName(".".join(table.name()[:-1]), table.name()[-1])
    columns, known, ours = TopicColumns(table), frozenset(logs(table)), named(table)
    choice = choose_files(ours, scan.plan_files(), held) if held.ranges != {} else FileChoice([])
    for partition, gap in choice.missing:
        raise _missing(table, partition, gap)
    if not choice.tasks:
        return Queryable(name, schema, held, columns, known)
    found = Queryable(
        name,
        schema,
        held,
        columns,
        known,
        filtered=choice.filtered,
        doubtful=choice.doubtful,
        row_bytes=_row_bytes(choice.tasks),
        lost=lambda: _lost(ours, scan.snapshot_id, choice.tasks),
    )
    paths = _local_paths(table, projection, choice.tasks)
    types = duck_types(projection) if paths else None
    if types is not None:
        return replace(found, paths=paths, types=types)
    dataset = _dataset(table, projection, schema, choice.tasks)
    if dataset is not None:
        return replace(found, dataset=dataset)
    rows = lambda: iter(scan.to_arrow_batch_reader().cast(schema))  # noqa: E731
    return replace(found, rows=rows, filtered=held.ranges is not None)


def _missing(table: Table, partition: int, gap: OffsetRange) -> TableDamaged:
    name = _name(table)
    why = f"offsets {gap.start} up to {gap.end} are missing"
    return TableDamaged(str(topic_of(name, partition)), str(name), gap.start, why)


def _lost(table: Table, snapshot_id: int | None, tasks: Sequence[FileScanTask]) -> FrazilError | None:
    """Ignore files that the table no longer references: they were replaced since the query was planned, and no row is
    missing."""
    column = table.schema().find_field(OFFSET.name) if OFFSET.name in table.schema().column_names else None
    for task in tasks:
        why = _wrong(table, task.file)
        if why is not None:
            name = _name(table)
            if not _is_named(table.catalog.load_table(table.name()), snapshot_id, task.file.file_path):
                return TryLater(f"{name}: files were replaced and removed while the query ran; run it again")
            low = None if column is None else bounds(task.file, column)[0]
            return TableDamaged(str(topic_of(name, 0)), str(name), low or 0, f"{task.file.file_path}: {why}")
    return None


def _is_named(now: Table, snapshot_id: int | None, path: str) -> bool:
    if snapshot_id is not None and now.snapshot_by_id(snapshot_id) is None:
        return False
    return any(task.file.file_path == path for task in now.scan(snapshot_id=snapshot_id).plan_files())


def _wrong(table: Table, file: DataFile) -> str | None:
    try:
        size = len(table.io.new_input(file.file_path))
    except FileNotFoundError:
        return "it is not there any more"
    return None if size == file.file_size_in_bytes else f"it has {size} bytes of {file.file_size_in_bytes}"


def _name(table: Table) -> TableName:
    return TableName(".".join(table.name()[:-1]), table.name()[-1])


def _row_bytes(tasks: Sequence[FileScanTask]) -> int:
    size = sum(task.file.file_size_in_bytes for task in tasks)
    return size // max(1, sum(task.file.record_count for task in tasks))


def _speak_for_themselves(table: Table, tasks: Sequence[FileScanTask]) -> bool:
    """Whether the files are Parquet with field ids, without separate delete files."""
    if table.metadata.name_mapping() is not None or not isinstance(table.io, PyArrowFileIO):
        return False
    return all(not task.delete_files and task.file.file_format is FileFormat.PARQUET for task in tasks)


def _local_paths(table: Table, schema: Schema, tasks: Sequence[FileScanTask]) -> tuple[str, ...]:
    """Return the local paths for an engine that finds columns by id, and members of structs by name."""
    if not _speak_for_themselves(table, tasks):
        return ()
    paths = tuple(task.file.file_path for task in tasks)
    if not all(path.startswith(("file://", "/")) for path in paths):
        return ()
    local = tuple(path.removeprefix("file://") for path in paths)
    if has_structs(schema) and not all(_members_are_kept(schema, pq.read_schema(path)) for path in local):
        return ()
    return local


def _members_are_kept(schema: Schema, file: pa.Schema) -> bool:
    """Whether members of structs have the same names and ids in the file as in the table."""
    written = pyarrow_to_schema(file)
    for number in written.field_ids:
        own, found = schema.find_column_name(number), written.find_column_name(number)
        if own is not None and _inner(own) != _inner(found or ""):
            return False
    return True


def _inner(name: str) -> str:
    return name.partition(".")[2]


def _dataset(table: Table, schema: Schema, arrow: pa.Schema, tasks: Sequence[FileScanTask]) -> ds.Dataset | None:
    """Return a dataset if each column has one unique name in all files; otherwise None."""
    if not _speak_for_themselves(table, tasks):
        return None
    assert isinstance(table.io, PyArrowFileIO)
    scheme, netloc, _ = table.io.parse_location(tasks[0].file.file_path)
    files, kind = table.io.fs_by_scheme(scheme, netloc), ds.ParquetFileFormat()
    fragments = [kind.make_fragment(table.io.parse_location(task.file.file_path)[2], files) for task in tasks]
    with ThreadPoolExecutor(FOOTER_READS_MAX) as pool:
        written = list(pool.map(lambda one: one.physical_schema, fragments))  # the fragment keeps it alive for its scan
    names = _names_in_files(schema, written)
    if names is None:
        return None
    fields = [
        own.with_name(names.get(column.field_id, own.name)) for own, column in zip(arrow, schema.fields, strict=True)
    ]
    if len({each.name.lower() for each in fields}) < len(fields):  # DuckDB treats them as the same
        return None
    return ds.FileSystemDataset(fragments, pa.schema(fields), kind, files)


def _names_in_files(schema: Schema, written: Sequence[pa.Schema]) -> dict[int, str] | None:
    """Return the column names in the files by field id; None if they are ambiguous."""
    names: dict[int, str] = {}
    numbers: dict[str, int] = {}
    for file in written:
        if not _members_are_kept(schema, file):
            return None
        for column in pyarrow_to_schema(file).fields:
            one_name = names.setdefault(column.field_id, column.name) == column.name
            if not one_name or numbers.setdefault(column.name, column.field_id) != column.field_id:
                return None
    unwritten = {column.name for column in schema.fields if column.field_id not in names}
    return None if unwritten & numbers.keys() else names
