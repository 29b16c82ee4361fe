"""The driver's view of logs and tables for the Spark source: what exists, and which task reads what.

Logs are asked before tables: rows that move in between are in the table, and are not read from the log.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping

import pyarrow as pa

from frazil.core.credentials import NO_CREDENTIALS, ClientCredentials, credentials_of
from frazil.core.errors import FrazilError, InvalidInput, OffsetOutOfRange, RowsMissing, TopicNotFound
from frazil.core.names import TopicName
from frazil.core.offsets import OffsetRange
from frazil.core.settings import Settings
from frazil.core.tiers import Tier, find_time, first_offset
from frazil.lake.read.history import TableHistories, TableHistory
from frazil.lake.read.task_plan import TaskPlanner
from frazil.lake.read.tier import TableTier
from frazil.lake.tables.schema import table_of
from frazil.log.folder.ownership import served_by
from frazil.log.info import LogInfo, covering
from frazil.node.access.served import credentials_at
from frazil.node.tiers.logs import LogTier, LogView, open_view
from frazil.pipeline.source.options import EARLIEST, LATEST, AtTime, Bound, SourceOptions
from frazil.pipeline.source.ranges import (
    Ends,
    Partition,
    SourceRange,
    Stretch,
    along_files,
    at_least,
    held_by,
    packed,
    split,
    task_bytes,
)

_log = logging.getLogger("frazil.pipeline")


def stored_of(info: LogInfo) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(info.stored_schema))


@contextlib.contextmanager
def looking(options: SourceOptions, settings: Settings) -> Iterator[Look]:
    with open_view(settings, options.owner) as view:
        yield Look(options, settings, view)


def _sure(info: LogInfo, found: int) -> int:
    """Return an offset that was searched for; raises `FrazilError` if unknown objects may have rows before it."""
    if found and found == info.held_from:
        info.check_objects()
    return found


class Look:
    """One look at the logs that the options select, by topic and partition."""

    def __init__(self, options: SourceOptions, settings: Settings, view: LogView) -> None:
        self._options = options
        self._view = view
        self._owner, self._credentials = _owner_for_tasks(settings, options.owner)
        self._histories = TableHistories(settings)
        self.logs: dict[Partition, LogInfo] = {}
        found = view.logs()
        for info in found:
            if options.wants(info.topic):
                base, number = info.topic.partition_of()
                other = self.logs.setdefault((str(base), number), info)
                if other is not info:
                    raise InvalidInput(f"{other.topic} and {info.topic} are both partition {number} of {base}")
        for name in options.topics:
            if not any(name in (info.topic, info.topic.partition_of()[0]) for info in self.logs.values()):
                self._absent(name, view)
        for topic, number in sorted(options.assigned - self.logs.keys()):
            base = TopicName.parse(topic)
            self._absent(TopicName(base.namespace, f"{base.topic}-part-{number}") if number else base, view)

    def _absent(self, name: TopicName, view: LogView) -> None:
        """Raise, or skip if the user allows it; an existing but damaged log is an error."""
        problems: Mapping[str, str] = getattr(view, "problems", {})
        if str(name) in problems:
            raise FrazilError(f"{name} cannot be read: {problems[str(name)]}", topic=str(name))
        if self._options.fail_on_data_loss:
            raise TopicNotFound(str(name))
        _log.warning("there is no topic %s; nothing is read of it", name)

    # --- where to begin and to end

    def starts(self) -> dict[Partition, int]:
        """Return the start of each partition by the options, within what exists."""
        bound = self._options.starting or Bound(EARLIEST)
        return {key: self._at(key, bound) for key in self.logs}

    def ends(self) -> dict[Partition, int]:
        """Return the end of each partition by the options."""
        bound = self._options.ending or Bound(LATEST)
        return {key: self._at(key, bound) for key in self.logs}

    def durable(self) -> dict[Partition, int]:
        return {key: info.durable_end for key, info in self.logs.items()}

    def first(self, info: LogInfo) -> int:
        """The first offset that can be read, from log or table."""
        return _sure(info, first_offset(self._tiers(info), info.durable_end))

    def _at(self, key: Partition, bound: Bound) -> int:
        info, wanted = self.logs[key], bound.of(*key)
        if isinstance(wanted, AtTime):
            return _sure(info, find_time(self._tiers(info), wanted.time_us, info.durable_end))
        if wanted == LATEST:
            return info.durable_end
        if wanted == EARLIEST:
            return self.first(info)
        if wanted <= info.durable_end:
            return wanted  # whether it still exists is checked when the range is planned
        first = self.first(info)
        if self._options.fail_on_data_loss:
            raise OffsetOutOfRange(str(info.topic), wanted, first, info.durable_end)
        _log.warning("%s has offsets %d up to %d, not %d", info.topic, first, info.durable_end, wanted)
        return info.durable_end

    def _tiers(self, info: LogInfo) -> list[Tier]:
        """The log, and its table where that may hold older rows."""
        found: list[Tier] = [LogTier(self._view, info)]
        history = self._history(info) if info.held_from else None
        if history is not None:
            found.append(TableTier(history, stored_of(info), skips_missing=not self._options.fail_on_data_loss))
        return found

    def _history(self, info: LogInfo) -> TableHistory | None:
        return self._histories.of(info.topic, info.log_id, [one.log_id for one in info.former])

    # --- tasks

    def plan(self, starts: Ends, ends: Ends) -> list[SourceRange]:
        """Return the tasks that read each partition from its start up to its end: the table's part first, then the
        log's."""
        found: list[tuple[LogInfo, Partition, TaskPlanner | None, list[Stretch]]] = []
        for key in sorted(ends):
            start, end = starts.get(key, 0), ends[key]
            if start < end:
                found += [(self.logs[key], key, *part) for part in self._parts(self.logs[key], OffsetRange(start, end))]
        total = sum(stretch.size_bytes for *_, stretches in found for stretch in stretches)
        size = task_bytes(total, self._options.partitions_min)
        cut = [
            (info, key, plan, wanted)
            for info, key, plan, stretches in found
            for wanted in packed(stretches, max(1.0, size))
        ]
        parts = at_least(len(cut), self._options.partitions_min or 1)
        return [
            self._range(info, key, piece, plan) for info, key, plan, wanted in cut for piece in split(wanted, parts)
        ]

    def _parts(self, info: LogInfo, wanted: OffsetRange) -> Iterator[tuple[TaskPlanner | None, list[Stretch]]]:
        history = self._history(info)
        plan = None if history is None else history.plan(wanted.start, wanted.end, log_start=info.held_from)
        at = wanted.start
        if plan is not None:
            stretches = along_files(plan.files, plan.wanted)
            first = next((stretch.range.start for stretch in stretches if stretch.size_bytes), plan.wanted.end)
            if first > at and not any(gap.start <= at and first <= gap.end for gap in plan.gaps):
                self._lost(info, OffsetRange(at, first))
                stretches = [stretch for stretch in stretches if stretch.range.start >= first]
            yield TaskPlanner(plan), stretches
            at = plan.wanted.end
        if at < min(info.held_from, wanted.end):
            info.check_objects()
            self._lost(info, OffsetRange(at, min(info.held_from, wanted.end)))
            at = info.held_from
        if wanted.end > info.durable_end:
            self._lost(info, OffsetRange(max(at, info.durable_end), wanted.end))
        end = min(wanted.end, info.durable_end)
        if at < end:
            yield None, [Stretch(OffsetRange(at, end), (end - at) * info.bytes_per_row)]

    def _range(self, info: LogInfo, key: Partition, wanted: OffsetRange, plan: TaskPlanner | None) -> SourceRange:
        topic, number = key
        return SourceRange(
            topic,
            number,
            str(info.topic),
            info.log_id,
            wanted,
            plan is not None,
            info.stored_schema,
            files=() if plan is not None else held_by(info.files, wanted),
            owner=self._owner,
            credentials=self._credentials,
            folder=info.folder,
            plan=None if plan is None else plan.part(wanted),
            objects=() if plan is not None else covering(info.objects, wanted),
        )

    def _lost(self, info: LogInfo, missing: OffsetRange) -> None:
        lost(str(info.topic), missing, self._options.fail_on_data_loss)


def lost(topic: str, missing: OffsetRange, fail: bool) -> None:
    """Rows that are lost: an error, or a warning if the user allows it."""
    table = str(table_of(TopicName.parse(topic))[0])
    if fail:
        raise RowsMissing(topic, table, missing.start, missing.end)
    _log.warning("offsets %d up to %d of %s are lost; skipped", missing.start, missing.end, topic)


def _owner_for_tasks(settings: Settings, owner: str | None) -> tuple[str | None, ClientCredentials]:
    """Return the address at which tasks, which may run on another host, reach the owner, and what they present."""
    if owner is not None:
        return owner, credentials_of(settings.client).for_tasks()
    served = served_by(settings)
    if served is None:
        return None, NO_CREDENTIALS
    address = str(served.get("advertised") or served["flight"])
    return address, credentials_at(settings, served, address).for_tasks()
