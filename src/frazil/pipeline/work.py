"""What one Spark task does: read ranges of the log, write them as data files, and tell what it wrote.

A task commits nothing. If it dies, or its answer is lost, it leaves files that are in no table.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from frazil.core.errors import FrazilError, TableRefused, ValueNotStorable
from frazil.core.offsets import OffsetRange
from frazil.core.rows import OFFSET
from frazil.core.storable import check_values
from frazil.lake.checksum import RowsChecksum, Streams
from frazil.lake.files import DataFile, DataFileWriter, TableFiles
from frazil.lake.last_row import last_row
from frazil.lake.reasons import reason
from frazil.lake.tables import table_rows
from frazil.lake.widened import widened_rows
from frazil.log.folder_mark import FolderMark
from frazil.topics.logs import read_anywhere


@dataclass(frozen=True, slots=True)
class LogRange:
    """All that a task needs to read one range: it asks nobody but the log's owner."""

    topic: str
    log_id: str
    partition: int
    range: OffsetRange
    files: tuple[tuple[int, Path], ...]
    stored_schema: bytes
    owner: str | None
    folder: FolderMark | None = None

    def rows(self) -> Iterator[pa.RecordBatch]:
        """As they were stored, with their offsets: from the files where they are at hand, else from the owner."""
        stored = pa.ipc.read_schema(pa.py_buffer(self.stored_schema))
        return read_anywhere(self.owner, self.topic, self.log_id, self.files, self.range, stored, self.folder)


@dataclass(frozen=True, slots=True)
class RangeInput:
    """A range to move, and the table to write it for."""

    source: LogRange
    table: TableFiles
    flush_bytes: int


@dataclass(frozen=True, slots=True)
class RangeOutput:
    """What became of one range: files that are in no table yet, or the reason why there are none."""

    log_id: str
    range: OffsetRange
    files: tuple[DataFile, ...] = ()
    rows: int = 0
    streams: Streams = field(default_factory=dict)
    error: str | None = None
    transformed: bool = False
    last: str = ""
    """The last row of the range as the log has it, see `frazil.lake.last_row`."""


def move_range(work: RangeInput) -> RangeOutput:
    """An error of one range, a corrupt segment or an odd table property say, is its own: the others go on."""
    try:
        return _move(work)
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the job of all topics
        return failed_range(work, error)


def failed_range(work: RangeInput, error: Exception) -> RangeOutput:
    """The output of a range that could not be moved, with the reason."""
    source = work.source
    if isinstance(error, FrazilError):
        return RangeOutput(source.log_id, source.range, error=error.message)
    why = reason(error, work.table.io_properties)
    what = f"offsets {source.range.start} up to {source.range.end} could not be written to the table ({why})"
    return RangeOutput(source.log_id, source.range, error=what)


def _move(work: RangeInput) -> RangeOutput:
    source, checksum = work.source, RowsChecksum(work.source.range.start)
    writer = DataFileWriter(work.table, work.flush_bytes)
    last = ""
    for rows in source.rows():
        _check_storable(source.topic, rows)
        checksum.add(rows)
        if rows.column(OFFSET.name)[-1].as_py() == source.range.end - 1:
            last = last_row(rows.slice(rows.num_rows - 1))
        writer.add(widened_rows(table_rows(rows, source.partition)))
    files = writer.close()
    assert writer.rows == len(source.range)
    return RangeOutput(source.log_id, source.range, files, writer.rows, checksum.streams(), last=last)


def _check_storable(topic: str, rows: pa.RecordBatch) -> None:
    """Rows that were published before such values were refused: `TableRefused` names the column and the offset."""
    try:
        check_values(rows)
    except ValueNotStorable as error:
        offset = rows.column(OFFSET.name)[error.row].as_py()
        raise TableRefused(
            f"column {error.field!r} of {topic} at offset {offset} cannot be stored in a table: {error.reason}",
            topic=topic,
            offset=offset,
            field=error.field,
        ) from None


def run_in_task(tasks: Sequence[Sequence[RangeInput]]) -> object:
    """The function for `mapInArrow`: each id names a task; its outputs come back pickled, one row a range.

    Each task's work is pickled by itself: what belongs to the others is sent to it, but never unpacked.
    """
    packed = [pickle.dumps(list(task)) for task in tasks]

    def run(ids: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in ids:
            for number in batch.column(0).to_pylist():
                work: list[RangeInput] = pickle.loads(packed[number])  # noqa: S301 - made by our own driver
                outputs = [pickle.dumps(move_range(one)) for one in work]
                yield pa.RecordBatch.from_arrays([pa.array(outputs, pa.binary())], names=["output"])

    return run
