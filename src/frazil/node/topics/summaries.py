"""Topic summaries of a server: logs, tables and users of each topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from frazil.broker.topics.known import KnownTopics
from frazil.core.coverage import merged
from frazil.core.disk import LocalDisk
from frazil.core.errors import CorruptLog, TopicNotFound
from frazil.core.names import TopicName
from frazil.core.partitions import partitions_of, topic_or_partitions
from frazil.log.repair.check import read_ends
from frazil.log.repair.survey import summarize
from frazil.log.retention.dropped import dropped_ranges
from frazil.log.stats import LogSide, TopicStats, known_in_objects, readable, topic_stats
from frazil.log.storage import Storage
from frazil.log.summary import LogSummary, summed, total
from frazil.node.movers.table_progress import MoverStatus
from frazil.node.tiers.table_figures import reported_ranges

_STATS = ("durable_end", "unsynced", "reserved_bytes", "cached_from", "queued_bytes")
_MORE_STATS = ("last_append_time_us", "torn_tail", "failed")


class TopicSummaries:
    """All calls block."""

    def __init__(self, storage: Storage, known: KnownTopics | None, status: MoverStatus) -> None:
        """`known` are the topics of the broker, None without one. Calls run in threads: copy `known` before iterating.
        `status` has the mover's last report."""
        self._storage = storage
        self._status = status
        self._known = known

    def names(self) -> set[TopicName]:
        """Return all topics and partitions of the log and the broker."""
        return self._storage.names() | set(dict(self._known or {}))

    def family(self, name: TopicName) -> set[TopicName]:
        return self._storage.family(name) | (set() if self._known is None else set(self._known.family(name)))

    def last_report(self) -> Mapping[str, Any] | None:
        """Return the mover's last report on all tables."""
        return self._status.read()

    def summary(self, name: TopicName, report: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Summarize a topic for lists, without asking a catalog; None if neither the log nor the broker has it."""
        return self._summary(name, report, ask_table=False)

    def describe(self, name: TopicName) -> dict[str, Any]:
        """Describe a topic with its log and its table, or the sums of its partitions; raises `TopicNotFound`."""
        found = self._summary(name, None, ask_table=True) or self._sums(name)
        if found is None:
            raise TopicNotFound(str(name))
        base = name.partition_of()[0]
        return {
            **dict.fromkeys((*_STATS, *_MORE_STATS, "held_back", "tiers")),
            "partitions": [],
            **found,
            "partition_of": None if base == name else str(base),
        }

    def log_rows(self, name: TopicName) -> int | None:
        """Count the rows in the log of a topic or its partitions; None if there is none, or one cannot be opened."""
        names = topic_or_partitions(name, self._storage.family(name))
        try:
            logs = [self._storage.topic(str(one), create=False).log for one in names]
        except (TopicNotFound, CorruptLog, OSError):
            return None
        return sum(topic_stats(log, ask_table=False).messages for log in logs)

    def _summary(self, name: TopicName, report: Mapping[str, Any] | None, *, ask_table: bool) -> dict[str, Any] | None:
        mine = None if self._known is None else self._known.get(name)
        used = {
            "reliable": mine is None or mine.reliable,
            "producers": None if self._known is None else 0 if mine is None else len(mine.producers),
            "subscriptions": None if self._known is None else 0 if mine is None else len(mine.subscriptions),
        }
        if mine is not None and not mine.reliable:
            nothing = LogSummary(str(name), None, False, None, 0, None, 0, 0, None, None, None, None, None)
            return {**nothing.as_dict(), **used}
        try:
            log, record = self._storage.topic(str(name), create=False).log, self._storage.record(str(name))
        except TopicNotFound:
            return None
        except (CorruptLog, OSError):
            disk, folder = LocalDisk(), self._storage.settings.log_folder
            return {**summarize(disk, folder, name, read_ends(disk, folder)[0]).as_dict(), **used}
        stats = topic_stats(log, ask_table=ask_table)
        summary = LogSummary(
            stats.topic, stats.log_id, stats.typed, stats.messages, stats.first_offset, stats.end, stats.segments,
            stats.bytes, record.created_us, record.schema, record.retention, record.ack.value,
            stats.failed,
        )  # fmt: skip
        if ask_table:
            return {**summary.as_dict(), **_figures(stats), **used}
        side = LogSide(stats.first_offset, stats.end, dropped_ranges(log.removal.dropped))
        held = merged([*reported_ranges(report, stats.topic, stats.log_id, side), *known_in_objects(log)])
        return {**summary.as_dict(), **asdict(readable(side.first, side.end, held)), **used}

    def _sums(self, name: TopicName) -> dict[str, Any] | None:
        """Return the sums of a topic's partitions; None if it has none."""
        names = partitions_of(name, self.family(name))
        report = self.last_report() if names else None
        found = [one for each in names if (one := self.summary(each, report)) is not None]
        if not found:
            return None
        return {
            **summed(str(name), found),
            **{figure: total(found, figure) for figure in ("producers", "subscriptions")},
            "reliable": all(one["reliable"] for one in found),
            "partitions": found,
        }


def _figures(stats: TopicStats) -> dict[str, Any]:
    held = None if stats.held_back is None else asdict(stats.held_back)
    figures = {name: getattr(stats, name) for name in (*_STATS, *_MORE_STATS)}
    return {**figures, "held_back": held, "tiers": asdict(stats.tiers)}
