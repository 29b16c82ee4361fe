"""Everything private that the lake uses of PyIceberg 0.12, each with its reason.

No other module imports a private name of PyIceberg, reads a private attribute of one of its objects or replaces one of
its functions (`tests/tidy` checks it), so this is the file to read before PyIceberg's version changes.

Subclasses elsewhere override these methods, which PyIceberg calls and does not document:

    lake/catalogs/sql.py        SqlCatalog.create_tables       tables that another process creates at the same moment
    lake/catalogs/postgres.py   SqlCatalog._init_catalog       gives the engine limits before its first statement
    lake/commit/append.py       MergeAppendFiles._manifests, _process_manifests, _summary: files of several partition
                                specs in one snapshot, and manifests that are merged by size class
    lake/files/file_io.py       PyArrowFileIO._initialize_fs, _initialize_s3_fs, _initialize_gcs_fs: file systems that
                                PyIceberg opens in a way that does not work, or takes more requests than it needs

`pyiceberg.io.pyarrow` takes longer to import than a short query takes, so it is imported where it is used.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pyiceberg.manifest
from pyiceberg.avro.file import AvroFile
from pyiceberg.catalog import _ENV_CONFIG, Catalog
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StagedTable, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import TableUpdate
from pyiceberg.table.update.snapshot import _ManifestMergeManager
from pyiceberg.table.update.snapshot import _MergeAppendFiles as MergeAppendFiles

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.io.pyarrow import ArrowProjectionVisitor, PyArrowFile
    from requests.adapters import HTTPAdapter

__all__ = [
    "MergeAppendFiles",  # the public `append` rebases and retries, so that a range could land twice
    "column_constants",
    "configured_properties",
    "delete_old_metadata",
    "made_retry_strategy",
    "merged_manifest",
    "mount_adapter",
    "output_place",
    "replace_manifest_reading",
    "replace_projection_visitor",
    "resolved_s3_region",
    "schema_without_ids",
    "staged",
    "to_table_schema",
    "written_by_partition",
]


def configured_properties(catalog_name: str) -> Mapping[str, Any]:
    """What a .pyiceberg.yaml or PYICEBERG_* says of a catalog: `load_catalog` merges it in, and returns it nowhere."""
    return _ENV_CONFIG.get_catalog_config(catalog_name) or {}


def mount_adapter(catalog: RestCatalog, prefix: str, adapter: HTTPAdapter) -> None:
    """Have the catalog's HTTP session use an adapter: the session has no limit on waiting, and no public name."""
    catalog._session.mount(prefix, adapter)


def staged(transaction: Transaction) -> tuple[StagedTable, tuple[TableUpdate, ...]]:
    """The table that a create transaction stages, with its updates, to be committed with requirements of our own."""
    table = transaction._table
    assert isinstance(table, StagedTable)
    return table, transaction._updates


def delete_old_metadata(catalog: Catalog, io: FileIO, before: TableMetadata, after: TableMetadata) -> None:
    """Delete metadata files as the table's properties say: PyIceberg does so only in commits of its own."""
    catalog._delete_old_metadata(io, before, after)


def merged_manifest(append: MergeAppendFiles, spec_id: int, manifests: list[ManifestFile]) -> ManifestFile:
    """One manifest with the entries of several: PyIceberg's manager alone also decides which are merged."""
    manager = _ManifestMergeManager(append._target_size_bytes, append._min_count_to_merge, True, append)
    return manager._create_manifest(spec_id, manifests)


def schema_without_ids(columns: pa.Schema) -> Schema:
    """Arrow columns as an Iceberg schema before ids are assigned: the public conversion demands ids."""
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids

    return _pyarrow_to_schema_without_ids(columns)


def written_by_partition(
    metadata: TableMetadata, rows: pa.Table, io: FileIO, write_id: uuid.UUID
) -> Iterable[DataFile]:
    """Write rows as data files of their partitions: the public `append` commits them too."""
    from pyiceberg.io.pyarrow import _dataframe_to_data_files

    return _dataframe_to_data_files(metadata, rows, io, write_id)


def column_constants(
    file: DataFile, wanted: Schema, table: Schema, spec: PartitionSpec | None, file_field_ids: set[int]
) -> dict[int, Any]:
    """Values of columns that a file lacks and its partition has: `ArrowScan` finds them too, but reads whole files."""
    from pyiceberg.io.pyarrow import _get_column_projection_values

    return _get_column_projection_values(file, wanted, table, spec, file_field_ids)


def to_table_schema(
    wanted: Schema, of_file: Schema, batch: pa.RecordBatch, constants: dict[int, Any]
) -> pa.RecordBatch:
    """A batch of a file in the table's columns, matched by field id: see `column_constants`."""
    from pyiceberg.io.pyarrow import _to_requested_schema

    return _to_requested_schema(
        wanted,
        of_file,
        batch,
        downcast_ns_timestamp_to_us=True,
        projected_missing_fields=constants,
        allow_timestamp_tz_mismatch=True,
    )


def resolved_s3_region(bucket: str | None) -> str | None:
    """The region of a bucket, as PyIceberg finds and remembers it: our own S3 file system needs it as PyIceberg's."""
    from pyiceberg.io.pyarrow import _cached_resolve_s3_region

    return _cached_resolve_s3_region(bucket=bucket)


def made_retry_strategy(class_name: str) -> Any:
    """The S3 retry strategy that a property names: see `resolved_s3_region`."""
    from pyiceberg.io.pyarrow import _import_retry_strategy

    return _import_retry_strategy(class_name)


def output_place(file: PyArrowFile) -> tuple[str, FileSystem, int]:
    """The path, file system and buffer size of an output, to make another of our own class from it."""
    return file._path, file._filesystem, file._buffer_size


def replace_projection_visitor(visitor: type[ArrowProjectionVisitor]) -> None:
    """Rebuild columns with this visitor in all of this process: PyIceberg's forgets nulls (`lake/files/nulls.py`)."""
    import pyiceberg.io.pyarrow

    pyiceberg.io.pyarrow.ArrowProjectionVisitor = visitor  # type: ignore[misc]


def replace_manifest_reading(
    avro_file: type[AvroFile[Any]],
    manifests: Callable[[Snapshot, FileIO], list[ManifestFile]],
    entries: Callable[[ManifestFile, FileIO, bool], list[ManifestEntry]],
) -> None:
    """Read manifests with these in all of this process: PyIceberg takes half a file for a whole one
    (`lake/files/manifests.py`)."""
    pyiceberg.manifest.AvroFile = avro_file  # type: ignore[attr-defined]
    Snapshot.manifests = manifests  # type: ignore[assignment, method-assign]
    ManifestFile.fetch_manifest_entry = entries  # type: ignore[assignment, method-assign]
