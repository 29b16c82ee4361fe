"""Table freshness: the age of the oldest row that is durable in the log and not in the table; zero if there is none.

The table's end is that of the mover's last report. So a mover that is dead, or never ran, shows as a growing age.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from frazil.core.clock import Clock
from frazil.core.errors import CorruptLog, FrazilError, OffsetOutOfRange
from frazil.core.rows import APPEND_TIME
from frazil.core.settings.topics import TopicRules
from frazil.core.stored_objects import held_from
from frazil.log.read.segment_reader import SegmentReader
from frazil.log.storage import Storage
from frazil.log.topic_log import TopicLog
from frazil.node.movers.table_progress import MoverStatus, table_end


@dataclass(frozen=True, slots=True)
class TopicFreshness:
    """One topic and its table. Without an objective none is missed."""

    topic: str
    lag_rows: int
    age_ms: int
    objective_ms: int | None

    @property
    def missed(self) -> bool:
        return self.objective_ms is not None and self.age_ms > self.objective_ms


class Freshness:
    """`always` is for an owner that has a mover. Otherwise topics count once a mover has reported, or if they have an
    objective."""

    def __init__(self, storage: Storage, status: MoverStatus, clock: Clock, *, always: bool) -> None:
        self._storage = storage
        self._status = status
        self._clock = clock
        self._always = always
        self._oldest: dict[str, tuple[int, int]] = {}

    def read(self) -> list[TopicFreshness]:
        """Return all topics that are moved and open."""
        report = self._status.read()
        counts = self._always or report is not None
        found = [
            (log, rules)
            for log, rules in self._logs()
            if rules.enabled and (counts or rules.freshness_objective_ms is not None)
        ]
        ids = {log.log_id for log, _ in found}
        self._oldest = {log_id: known for log_id, known in self._oldest.items() if log_id in ids}
        return [self._of(log, rules, report) for log, rules in found]

    def missed(self) -> list[TopicFreshness]:
        """Return those that miss their objective; only topics with one are checked."""
        report = self._status.read()
        wanted = [(log, rules) for log, rules in self._logs() if rules.freshness_objective_ms is not None]
        return [one for log, rules in wanted if (one := self._of(log, rules, report)).missed]

    def _logs(self) -> Iterator[tuple[TopicLog, TopicRules]]:
        for topic in self._storage.opened_topics():
            yield topic.log, self._storage.settings.of_topic(topic.log.name)

    def _of(self, log: TopicLog, rules: TopicRules, report: Mapping[str, Any] | None) -> TopicFreshness:
        durable_end = log.durable_end
        start = max(table_end(report, log), _first(log))
        if start >= durable_end:
            return TopicFreshness(str(log.name), 0, 0, rules.freshness_objective_ms)
        age_ms = max(0, self._clock.now_us() - self._since_us(log, start)) // 1_000
        return TopicFreshness(str(log.name), durable_end - start, age_ms, rules.freshness_objective_ms)

    def _since_us(self, log: TopicLog, offset: int) -> int:
        """Return when the row was appended: read once, and cached while it is the oldest waiting row."""
        known = self._oldest.get(log.log_id)
        if known is not None and known[0] == offset:
            return known[1]
        try:
            time_us = append_time_us(log, offset)
        except (FrazilError, OSError):  # just removed, or unreadable: it has waited since we first saw it
            time_us = self._clock.now_us() if known is None else known[1]
        self._oldest[log.log_id] = (offset, time_us)
        return time_us


def _first(log: TopicLog) -> int:
    """Return where the rows of files and known objects begin."""
    first, figures = log.first_offset, log.colder.figures
    return first if figures is None else held_from(first, figures.side(log, ask=False).held)


def append_time_us(log: TopicLog, offset: int) -> int:
    """Return when a durable row was appended, without counting it as a read."""
    cached = log.cache.find(offset)
    if cached is not None:
        return _time_us(cached.rows(), offset - cached.offset)
    segments = log.segments
    at = bisect.bisect_right(segments, offset, key=lambda segment: segment.base) - 1
    if at < 0:
        raise OffsetOutOfRange(str(log.name), offset, log.first_offset, log.durable_end)
    reader = SegmentReader(log.context.disk, segments[at])
    try:
        reader.seek(offset)
        batch = reader.next()
        if batch is None or not batch.offset <= offset < batch.end:
            raise CorruptLog(reader.path, reader.position, f"offset {offset} is not where it belongs")
        return _time_us(batch.rows, offset - batch.offset)
    finally:
        reader.close()


def _time_us(rows: pa.RecordBatch, index: int) -> int:
    return int(rows.column(APPEND_TIME.name).cast(pa.int64())[index].as_py())
