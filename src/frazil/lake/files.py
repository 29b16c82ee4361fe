"""Data files: Arrow rows written as Parquet where a table keeps its files, in no table yet."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import pyarrow as pa
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.table.metadata import TableMetadataUtil

from frazil.lake.nulls import keep_nulls
from frazil.lake.store_errors import store_error

__all__ = ["DataFile", "write_data_files"]

keep_nulls()


def write_data_files(
    table_metadata: str, io_properties: Mapping[str, str], rows: pa.Table, write_id: uuid.UUID
) -> list[DataFile]:
    """Write rows by the table's own schema, partitioning and properties; returns what a commit needs to know."""
    metadata = TableMetadataUtil.parse_raw(table_metadata)
    io = load_file_io(dict(io_properties), metadata.location)
    try:
        files = list(_dataframe_to_data_files(metadata, rows, io, write_id))
    except OSError as error:
        raise store_error(error, metadata.location, io_properties) from None
    for file in files:
        file.spec_id = metadata.default_spec_id  # the table's may be another by the time of the commit
    return files
