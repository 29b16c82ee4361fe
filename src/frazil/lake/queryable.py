"""A table as another engine can query it: its files, or its rows where the files alone would mislead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa
import pyarrow.dataset as ds
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow
from pyiceberg.manifest import FileFormat
from pyiceberg.table import DataScan, Table
from pyiceberg.table.metadata import TableMetadata

from frazil.core.errors import InvalidInput, LakeUnavailable
from frazil.lake.reasons import reason
from frazil.lake.tables import TableName
from frazil.lake.token import ends


@dataclass(frozen=True, slots=True)
class Queryable:
    """One of `paths`, `dataset` and `rows`; `ends` says how far each log is in it.

    Paths of local files are for an engine that reads Parquet itself. A dataset is for stores that only we can reach.
    Rows are for tables whose files don't speak for themselves: rows deleted by a file beside them, or columns that
    had other names.
    """

    schema: pa.Schema
    ends: dict[str, int] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    same_columns: bool = True
    dataset: ds.Dataset | None = None
    rows: Callable[[], Iterator[pa.RecordBatch]] | None = None


def queryable(
    catalog: Catalog, name: TableName, snapshot_id: int | None = None, at: datetime | None = None
) -> Queryable | None:
    """The table now, or as it was; None if there is none."""
    try:
        table = catalog.load_table(name.identifier)
        snapshot_id = _snapshot(table, snapshot_id, at)
        scan = table.scan(snapshot_id=snapshot_id)
        return _found(table, scan, now=snapshot_id is None)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None
    except InvalidInput:
        raise
    except Exception as error:
        why = reason(error, catalog.properties)
        raise LakeUnavailable("catalog", f"{name} cannot be read: {why}") from error


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


def _found(table: Table, scan: DataScan, *, now: bool) -> Queryable:
    tasks = list(scan.plan_files())
    schema = schema_to_pyarrow(scan.projection(), include_field_ids=False)
    known = ends(table) if now else {}
    plain = all(not task.delete_files and task.file.file_format is FileFormat.PARQUET for task in tasks)
    if not plain or not _names_are_kept(table.metadata) or not isinstance(table.io, PyArrowFileIO):
        return Queryable(schema, known, rows=lambda: iter(scan.to_arrow_batch_reader()))
    paths = tuple(task.file.file_path for task in tasks)
    if all(path.startswith(("file://", "/")) for path in paths):
        same = len(table.metadata.schemas) == 1
        return Queryable(schema, known, tuple(path.removeprefix("file://") for path in paths), same)
    scheme, netloc, _ = table.io.parse_location(paths[0])
    files = table.io.fs_by_scheme(scheme, netloc)
    inner = [table.io.parse_location(path)[2] for path in paths]
    return Queryable(schema, known, dataset=ds.dataset(inner, schema=schema, filesystem=files, format="parquet"))


def _names_are_kept(metadata: TableMetadata) -> bool:
    """Whether each column was called the same in every schema that a file may have, and no name had two columns."""
    seen: dict[str, int] = {}
    for schema in metadata.schemas:
        for number in schema.field_ids:
            name = schema.find_column_name(number)
            if name is not None and seen.setdefault(name, number) != number:
                return False
    return len(set(seen.values())) == len(seen)
