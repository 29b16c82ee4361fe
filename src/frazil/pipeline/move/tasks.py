"""A Spark task of the mover: read ranges of the log, write them as data files, and return the files.

A task commits nothing. If it dies, or its answer is lost, it leaves files that are in no table.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from frazil.core.credentials import NO_CREDENTIALS, ClientCredentials
from frazil.core.errors import FrazilError, TableRefused, ValueNotStorable
from frazil.core.offsets import OffsetRange
from frazil.core.rows import OFFSET
from frazil.core.rows.storable import check_values
from frazil.lake.catalogs.error_text import reason
from frazil.lake.files.checksum import RowsChecksum, Streams
from frazil.lake.files.widening import widened_rows
from frazil.lake.files.writer import WriterGroup
from frazil.lake.tables.last_row import last_row
from frazil.lake.tables.schema import TableName, table_rows
from frazil.log.folder.identity import FolderMark
from frazil.node.tiers.logs import read_anywhere
from frazil.node.tiers.objects import TaskObjects
from frazil.pipeline.move.outputs import Derived, Target, Written


@dataclass(frozen=True, slots=True)
class LogRange:
    """Everything a task needs to read one range: it asks only the log's owner, or the store of its objects."""

    topic: str
    log_id: str
    partition: int
    range: OffsetRange
    files: tuple[tuple[int, Path], ...]
    stored_schema: bytes
    owner: str | None
    folder: FolderMark | None = None
    credentials: ClientCredentials = NO_CREDENTIALS
    """For the owner. They travel in the task, which Spark neither logs nor shows."""
    objects: TaskObjects | None = None
    """The objects with rows of the range, and the credentials of their store, which travel likewise."""

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows as stored, with their offsets: from the files if accessible, else from objects, else from the
        owner.

        All of them, or an error: derived rows and results do not show which rows they lack.
        """
        stored = pa.ipc.read_schema(pa.py_buffer(self.stored_schema))
        place = (self.owner, self.topic, self.log_id, self.files, self.range, stored, self.folder)
        at = self.range.start
        for rows in read_anywhere(*place, self.credentials, self.objects):
            if rows.num_rows == 0:
                continue
            self._must_be(rows.column(OFFSET.name)[0].as_py(), at)
            at += rows.num_rows
            yield rows
        self._must_be(at, self.range.end)

    def _must_be(self, found: int, wanted: int) -> None:
        if found != wanted:
            raise FrazilError(
                f"reading offsets {self.range.start} up to {self.range.end} of {self.topic} came to offset {found} "
                f"instead of {wanted}; nothing of them is moved",
                topic=self.topic,
                offset=wanted,
            )


@dataclass(frozen=True, slots=True)
class RangeInput:
    """A range to move, and the tables to write it for."""

    source: LogRange
    targets: tuple[Target, ...]
    flush_bytes: int
    """How many bytes of rows the writers of all targets gather together."""
    derived: Derived | None = None
    uncreated: tuple[TableName, ...] = ()
    """Tables that are created once there are rows for them."""


@dataclass(frozen=True, slots=True)
class RangeOutput:
    """What became of one range: files for each of its tables, in none of them yet, or the reason why there are none."""

    log_id: str
    range: OffsetRange
    written: tuple[Written, ...] = ()
    streams: Streams = field(default_factory=dict)
    error: str | None = None
    last: str = ""
    """The last row of the range in the log, see `frazil.lake.tables.last_row`."""
    missing: tuple[TableName, ...] = ()
    """Tables that there are rows for, and that are to be created before the range can be moved."""


def move_range(work: RangeInput) -> RangeOutput:
    """An error of one range, such as a corrupt segment or an odd table property, affects only that range."""
    try:
        return _move(work)
    except Exception as error:  # noqa: BLE001 - an error of one topic must not end the job of all
        return failed_range(work, error)


def failed_range(work: RangeInput, error: Exception) -> RangeOutput:
    """Return the output of a range that could not be moved, with the reason."""
    source = work.source
    if isinstance(error, FrazilError):
        return RangeOutput(source.log_id, source.range, error=error.message)
    why = reason(error, {str(target.table): target.files.io_properties for target in work.targets})
    what = f"offsets {source.range.start} up to {source.range.end} could not be written to the table ({why})"
    return RangeOutput(source.log_id, source.range, error=what)


def _move(work: RangeInput) -> RangeOutput:
    source = work.source
    plain = next((target.table for target in work.targets if not target.is_result), None)
    checksum = None if plain is None else RowsChecksum(source.range.start)
    writers = WriterGroup({target.table: target.files for target in work.targets}, work.flush_bytes)
    wanted = {target.table for target in work.targets if target.is_result}
    missing: set[TableName] = set()
    last = ""
    for rows in source.rows():
        _check_storable(source.topic, rows)
        if rows.column(OFFSET.name)[-1].as_py() == source.range.end - 1:
            last = last_row(rows.slice(rows.num_rows - 1))
        if checksum is not None and plain is not None:
            checksum.add(rows)
            writers.add(plain, widened_rows(table_rows(rows, source.partition)))
        for table, made in _derived(work, rows):
            if table in wanted:
                writers.add(table, made)
            elif table in work.uncreated:
                missing.add(table)
    written = tuple(
        Written(target.table, writers.close(target.table), writers.rows(target.table), target.is_result)
        for target in work.targets
    )
    assert all(each.is_result or each.rows == len(source.range) for each in written)
    streams = {} if checksum is None else checksum.streams()
    return RangeOutput(source.log_id, source.range, written, streams, last=last, missing=tuple(sorted(missing)))


def _derived(work: RangeInput, rows: pa.RecordBatch) -> Iterator[tuple[TableName, pa.RecordBatch]]:
    """Yield the rows derived from these, by table, if any table wants them."""
    if work.derived is None or not (work.uncreated or any(target.is_result for target in work.targets)):
        return
    for part in work.derived.parts(rows, work.source.partition):
        yield from ((table, made) for table, made in part.items() if made.num_rows)


def _check_storable(topic: str, rows: pa.RecordBatch) -> None:
    """Check rows that were published before such values were refused: `TableRefused` names the
    column and the offset."""
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
    """The function for `mapInArrow`: each id names a task; its outputs are returned pickled, one row per range.

    Each task's work is pickled separately: a task receives all of them, but unpickles only its own.
    """
    packed = [pickle.dumps(list(task)) for task in tasks]

    def run(ids: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in ids:
            for number in batch.column(0).to_pylist():
                work: list[RangeInput] = pickle.loads(packed[number])  # noqa: S301 - pickled by our own driver
                outputs = [pickle.dumps(move_range(one)) for one in work]
                yield pa.RecordBatch.from_arrays([pa.array(outputs, pa.binary())], names=["output"])

    return run
