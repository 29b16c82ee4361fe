"""Which rows of a table are valid rows of a topic, the same for every reader.

A table may hold more: rows of an earlier topic of that name, of a partition without a log, in an accepted gap, or at
offsets beyond our commits. The token says which rows are valid, and each of them must exist once. What readers refuse
is refused here with the same error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pyiceberg.table import FileScanTask, Table

from frazil.core.coverage import merged, without
from frazil.core.errors import TableRefused
from frazil.core.offsets import OffsetRange
from frazil.core.rows import OFFSET
from frazil.lake.read.offset_files import bounds
from frazil.lake.tables.schema import PARTITION
from frazil.lake.tables.token import INDEX_COLUMN, end_before_log, gaps, is_transformed, logs, read_token, row_count

PartitionRange = tuple[int, OffsetRange]


@dataclass(frozen=True, slots=True)
class HeldRows:
    """`ranges` has, by partition, the offsets that the table must have; None means that all its rows are valid.

    `by_log` has the committed end by log id. A table of a statement's results is complete by itself, and no log adds to
    it.
    """

    ranges: dict[int, list[OffsetRange]] | None
    by_log: dict[str, int] = field(default_factory=dict)
    transformed: bool = False
    several_per_offset: bool = False
    """Whether an offset has any number of rows, and none too: as that of a request has in a table of telemetry."""

    def within(self, partition: int, wanted: OffsetRange) -> list[OffsetRange]:
        """Return the parts of a range that the table must have."""
        held = (self.ranges or {}).get(partition, [])
        return [
            OffsetRange(max(one.start, wanted.start), min(one.end, wanted.end))
            for one in held
            if one.start < wanted.end and wanted.start < one.end
        ]


@dataclass(frozen=True, slots=True)
class FileChoice:
    """The files to read, and whether their rows have to be filtered.

    `missing` are offsets without a file, `doubtful` those of files with more or fewer rows than offsets.
    """

    tasks: list[FileScanTask]
    filtered: bool = False
    missing: list[PartitionRange] = field(default_factory=list)
    doubtful: list[PartitionRange] = field(default_factory=list)


def held_rows(
    table: Table,
    live: Mapping[int, str],
    only: int | None = None,
    log_starts: Mapping[str, int] | None = None,
    *,
    requests_end: int | None = None,
) -> HeldRows:
    """`live` are the available logs by partition, `log_starts` their first offsets; `only` selects one partition.

    With `requests_end` these are logs of requests, and the table may have their rows: all up to its token, and up to
    this end of the topic's own table. A replay may have added rows between the two, or to a table without a token.

    A log that is not available is read from the table alone. For a partition with an available log, only that log
    counts: rows of an earlier log are not rows of this topic.
    """
    several = INDEX_COLUMN in table.schema().column_names
    if is_transformed(table) and (requests_end is None or not several):
        return HeldRows(None, transformed=True, several_per_offset=several)
    known = logs(table)
    if not known and not live:
        return HeldRows(None)
    _check_columns(table)
    ranges: dict[int, list[OffsetRange]] = {}
    by_log: dict[str, int] = {}
    for partition in sorted({*known.values(), *(live if requests_end else ())}):
        if only is not None and partition != only:
            continue
        held = [log_id for log_id, its in known.items() if its == partition]
        if requests_end and not held and row_count(table, live[partition]) is not None:
            ranges[partition] = [OffsetRange(0, requests_end)]
            continue
        if partition in live and live[partition] not in held:
            continue
        if len(held) > 1:
            raise _two_logs(table, partition, held)
        token = read_token(table, held[0])
        if token is not None and token.end:
            end = end_before_log(table, held[0], token.end, (log_starts or {}).get(held[0], token.end))
            if end:
                reach = end if end < token.end else max(end, requests_end or 0)
                ranges[partition] = without(OffsetRange(0, reach), gaps(table, held[0]))
                by_log[held[0]] = end
    return HeldRows(ranges, by_log, several_per_offset=several)


def choose_files(table: Table, tasks: Iterable[FileScanTask], held: HeldRows) -> FileChoice:
    """Choose by the files' statistics. Rows are examined only if these are inconclusive."""
    if held.ranges is None:
        return FileChoice(list(tasks))
    spans, unknown = [], []
    for task in tasks:
        span = _span(table, task)
        if span is None:
            unknown.append(task)
        elif held.within(span.partition, span.range):
            spans.append(span)
    kept = [*(span.task for span in spans), *unknown]
    if unknown and held.several_per_offset:
        return FileChoice(kept, filtered=True)
    if unknown:
        every = [(partition, one) for partition, ranges in held.ranges.items() for one in ranges]
        return FileChoice(kept, filtered=True, doubtful=every)
    filtered = any(held.within(span.partition, span.range) != [span.range] for span in spans)
    if held.several_per_offset:
        return FileChoice(kept, filtered)
    groups = list(_groups(spans))
    return FileChoice(
        kept,
        filtered,
        missing=[
            (partition, gap)
            for partition, ranges in held.ranges.items()
            for one in ranges
            for gap in without(one, merged(span.range for span in spans if span.partition == partition))
        ],
        doubtful=[group.place for group in groups if not group.is_whole(held)],
    )


@dataclass(frozen=True, slots=True)
class _FileSpan:
    partition: int
    range: OffsetRange
    task: FileScanTask = field(compare=False)


@dataclass(frozen=True, slots=True)
class _Group:
    """Files that overlap."""

    place: PartitionRange
    tasks: tuple[FileScanTask, ...]

    def is_whole(self, held: HeldRows) -> bool:
        """Whether the counts match one row per offset. Only the rows themselves would show more."""
        if any(task.delete_files for task in self.tasks):
            return False
        return sum(task.file.record_count for task in self.tasks) == sum(map(len, held.within(*self.place)))


def _groups(spans: Iterable[_FileSpan]) -> Iterator[_Group]:
    group: _Group | None = None
    for span in sorted(spans, key=lambda one: (one.partition, one.range)):
        if group is not None and group.place[0] == span.partition and span.range.start < group.place[1].end:
            end = max(group.place[1].end, span.range.end)
            group = _Group((span.partition, OffsetRange(group.place[1].start, end)), (*group.tasks, span.task))
            continue
        if group is not None:
            yield group
        group = _Group((span.partition, span.range), (span.task,))
    if group is not None:
        yield group


def _span(table: Table, task: FileScanTask) -> _FileSpan | None:
    """Return None if the file has rows of several partitions, or no statistics."""
    schema = table.schema()
    least, greatest = bounds(task.file, schema.find_field(PARTITION.name))
    low, high = bounds(task.file, schema.find_field(OFFSET.name))
    if least is None or least != greatest or low is None or high is None:
        return None
    return _FileSpan(least, OffsetRange(low, high + 1), task)


def _check_columns(table: Table) -> None:
    for name in (OFFSET.name, PARTITION.name):
        if name not in table.schema().column_names:
            raise TableRefused(
                f"{'.'.join(table.name())} has no column {name} any more; restore its name, or move the table away",
                table=".".join(table.name()),
                column=name,
            )


def _two_logs(table: Table, partition: int, held: list[str]) -> TableRefused:
    name = ".".join(table.name())
    return TableRefused(
        f"{name} holds rows of two logs as its partition {partition} ({', '.join(sorted(held))}), whose offsets are"
        " the same; move the rows of one of them to another table",
        table=name,
        partition=partition,
    )
