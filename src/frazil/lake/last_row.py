"""Which row a table got last of a log: a log that was cut or restored has another row, or none, at that offset.

    frazil.{log id}.last   `{end}:{fingerprint}` of the row at offset `end - 1`, as it was read from the log

Each commit records it with the token. Offsets alone cannot tell a log that has gone back and grown again from one that
went on. The fingerprint holds the append time, which no two appends of different rows at one offset share, and the
values. Columns without a value are left out: a topic may get more columns.
"""

from __future__ import annotations

import pyarrow as pa
from isal.isal_zlib import crc32
from pyiceberg.table import Table

from frazil.core.offsets import OffsetRange
from frazil.core.rows import APPEND_TIME, OFFSET
from frazil.lake.checksum import RowsChecksum, Stream
from frazil.lake.file_rows import FileRows
from frazil.lake.offset_files import plan_offsets
from frazil.lake.token import is_transformed, last_key


def last_row(row: pa.RecordBatch) -> str:
    """What a commit records of the last row that it moves; `row` is that row, with its offset."""
    assert row.num_rows == 1
    return f"{row.column(OFFSET.name)[0].as_py() + 1}:{fingerprint(row):08x}"


def fingerprint(row: pa.RecordBatch) -> int:
    """The same for the same row, however many columns the topic has got since, and however wide they are."""
    checksum = RowsChecksum()
    checksum.add(row.select([name for name in row.schema.names if name != OFFSET.name]))
    streams = checksum.streams()
    empty = {name.removesuffix("?") for name, stream in streams.items() if name.endswith("?") and _all_null(stream)}
    text = ";".join(
        f"{name}={stream.crc}" for name, stream in sorted(streams.items()) if not _is_within(name, empty)
    )  # fmt: skip
    return int(crc32(text.encode()))


def is_last_row(table: Table, log_id: str, partition: int, row: pa.RecordBatch) -> bool:
    """Whether the log's row is the one that the table got last of it. True where nothing is known of that one.

    A table whose last commit recorded nothing, as older movers left them, is asked for the row's append time: its
    other columns may have been changed since by another engine.
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


def _all_null(stream: Stream) -> bool:
    return stream.crc == crc32(b"\1" * stream.length)


def _is_within(stream: str, columns: set[str]) -> bool:
    """Whether a stream is of one of the columns, or of a column within one."""
    name = stream.rstrip("?#")
    parts = name.split(".")
    return any(".".join(parts[: count + 1]) in columns for count in range(len(parts)))
