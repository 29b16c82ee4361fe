"""What one Spark task does: read ranges of the log, write them as data files, and tell what it wrote.

A task commits nothing. If it dies, or its answer is lost, it leaves files that are in no table.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from frazil.core.errors import FrazilError
from frazil.core.offsets import OffsetRange
from frazil.lake.checksum import RowsChecksum
from frazil.lake.files import DataFile, write_data_files
from frazil.lake.reasons import reason
from frazil.lake.tables import table_rows
from frazil.topics.logs import read_anywhere


@dataclass(frozen=True, slots=True)
class RangeInput:
    """All that a task needs to move one range: it asks nobody but the log's owner."""

    topic: str
    log_id: str
    partition: int
    range: OffsetRange
    files: tuple[tuple[int, Path], ...]
    stored_schema: bytes
    owner: str | None
    table_metadata: str
    io_properties: dict[str, str] = field(repr=False)
    """With secrets: for the task, and never printed."""


@dataclass(frozen=True, slots=True)
class RangeOutput:
    """What became of one range: files that are in no table yet, or the reason why there are none."""

    log_id: str
    range: OffsetRange
    files: tuple[DataFile, ...] = ()
    rows: int = 0
    checksum: int = 0
    error: str | None = None


def move_range(work: RangeInput) -> RangeOutput:
    """An error of one range, a corrupt segment say, is its own: the other ranges of the job go on."""
    try:
        return _move(work)
    except (FrazilError, OSError, pa.ArrowException) as error:
        return RangeOutput(work.log_id, work.range, error=reason(error, work.io_properties))


def _move(work: RangeInput) -> RangeOutput:
    checksum = RowsChecksum()
    batches = []
    for rows in _rows(work):
        checksum.add(rows)
        batches.append(table_rows(rows, work.partition))
    table = pa.Table.from_batches(batches)
    assert table.num_rows == len(work.range)
    files = write_data_files(work.table_metadata, work.io_properties, table, uuid.uuid4())
    return RangeOutput(work.log_id, work.range, tuple(files), table.num_rows, checksum.value())


def _rows(work: RangeInput) -> Iterator[pa.RecordBatch]:
    stored = pa.ipc.read_schema(pa.py_buffer(work.stored_schema))
    return read_anywhere(work.owner, work.topic, work.log_id, work.files, work.range, stored)


def run_in_task(tasks: bytes) -> object:
    """The function for `mapInArrow`: each id names a task; its outputs come back pickled, one row a range."""

    def run(ids: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        work: list[list[RangeInput]] = pickle.loads(tasks)  # noqa: S301 - made by our own driver
        for batch in ids:
            for number in batch.column(0).to_pylist():
                outputs = [pickle.dumps(move_range(one)) for one in work[number]]
                yield pa.RecordBatch.from_arrays([pa.array(outputs, pa.binary())], names=["output"])

    return run
