"""The last row that a table got of a log: a log that was cut or restored has another row, or none, at that offset.

    frazil.{log id}.last   `{end}:{fingerprint}` of the row at offset `end - 1`, as it was read from the log

Each commit records it with the token. Offsets alone cannot distinguish a log that was set back and grew again from one
that continued. The fingerprint covers the append time, which no two different rows at one offset share, and the values.
Columns without a value are left out: a topic may get more columns.
"""

from __future__ import annotations

import pyarrow as pa
from isal.isal_zlib import crc32
from pyiceberg.table import Table

from frazil.core.offsets import OffsetRange
from frazil.core.rows import APPEND_TIME, OFFSET
from frazil.lake.files.checksum import ColumnStream, RowsChecksum
from frazil.lake.read.file_rows import FileRows
from frazil.lake.read.offset_files import plan_offsets
from frazil.lake.tables.token import is_transformed, last_key


def last_row(row: pa.RecordBatch) -> str:
    """Return what a commit records of its last row; `row` is that row, with its offset."""
    assert row.num_rows == 1
    return f"{row.column(OFFSET.name)[0].as_py() + 1}:{fingerprint(row):08x}"


def fingerprint(row: pa.RecordBatch) -> int:
    """Return the same value for the same row, even if the topic gets more or wider columns."""
    checksum = RowsChecksum()
    checksum.add(row.select([name for name in row.schema.names if name != OFFSET.name]))
    streams = checksum.streams()
    empty = {name.removesuffix("?") for name, stream in streams.items() if name.endswith("?") and _all_null(stream)}
    text = ";".join(
        f"{name}={stream.crc}" for name, stream in sorted(streams.items()) if not _is_within(name, empty)
    )  # fmt: skip
    return int(crc32(text.encode()))


def is_last_row(table: Table, log_id: str, partition: int, row: pa.RecordBatch) -> bool:
    """Whether the log's row is the last one that the table got of it. True if nothing is recorded.

    If the last commit recorded nothing, as older movers did, the row's append time is compared: another engine may have
    changed its other columns since.
    """
    offset = row.column(OFFSET.name)[0].as_py()
    end, _, recorded = table.metadata.properties.get(last_key(log_id), "").partition(":")
    if end == str(offset + 1):
        return recorded == f"{fingerprint(row):08x}"
    if is_transformed(table):
        return True
    times = _append_times(table, partition, offset)
    return not times or row.column(APPEND_TIME.name).cast(pa.int64())[0].as_py() in times


def _append_times(table: Table, partition: int, offset: int) -> list[int]:
    wanted = OffsetRange(offset, offset + 1)
    rows = FileRows(table, [APPEND_TIME.name], partition)
    return [
        time
        for file in plan_offsets(table, partition, wanted)
        for batch in rows.batches(file, wanted)
        for time in batch.column(1).cast(pa.int64()).to_pylist()
    ]


def _all_null(stream: ColumnStream) -> bool:
    return stream.crc == crc32(b"\1" * stream.length)


def _is_within(stream: str, columns: set[str]) -> bool:
    """Whether a stream belongs to one of the columns, or to a column within one."""
    name = stream.rstrip("?#")
    parts = name.split(".")
    return any(".".join(parts[: count + 1]) in columns for count in range(len(parts)))
