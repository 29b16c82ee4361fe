"""Describe topics of a folder without a server, from its files and tables, in the same form as a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from frazil.core.clock import SystemClock
from frazil.core.coverage import merged
from frazil.core.disk import LocalDisk
from frazil.core.disk.json_file import read_json
from frazil.core.errors import CorruptLog
from frazil.core.names import TopicName
from frazil.core.offsets import OffsetRange
from frazil.core.partitions import partitions_of
from frazil.core.rows import APPEND_TIME, stored_schema
from frazil.core.settings import Settings
from frazil.log.folder.catalog import read_topic_record
from frazil.log.folder.layout import topic_folder, topic_names
from frazil.log.read.ranges import read_range
from frazil.log.repair.check import read_ends
from frazil.log.repair.recovery import list_segments
from frazil.log.repair.survey import describe_topic, summarize
from frazil.log.retention.dropped import dropped_ranges
from frazil.log.stats import LogSide, Tiers, log_tier, readable
from frazil.log.summary import LogSummary, summed
from frazil.node.movers.table_progress import status_path
from frazil.node.objects.figures import side_from_manifests
from frazil.node.tiers.table_figures import TableQuestion, reported_ranges, table_side


def describe_from_files(settings: Settings, name: TopicName) -> dict[str, Any]:
    """Return a summary with `tiers`, None for a topic that cannot be read, and `partitions`, whose totals it has.

    `held_back` is None: only the owner of the folder asks the guards of retention.
    """
    there = topic_names(LocalDisk(), settings.log_folder)
    partitions = [] if name in there else partitions_of(name, there)
    if partitions:
        report, ends = read_json(status_path(settings)), read_ends(LocalDisk(), settings.log_folder)[0]
        found = [_listed(settings, one, report, ends) for one in partitions]
        return {**summed(str(name), found), "tiers": None, "held_back": None, "partitions": found}
    return {**_described(settings, name), "held_back": None, "partitions": []}


def _described(settings: Settings, name: TopicName) -> dict[str, Any]:
    one = describe_topic(LocalDisk(), settings.log_folder, name)
    log = _log_side(settings, name, one)
    if log is None or one.log_id is None:
        return {**one.as_dict(), "tiers": None}
    clock = SystemClock()
    asked = TableQuestion(
        settings,
        name,
        one.log_id,
        log,
        lambda: _history(settings, name, str(one.log_id)),
        read_json(status_path(settings)),
        lambda offset: _append_time_us(settings, name, one, offset),
    )
    side = table_side(asked, clock)
    objects = side_from_manifests(settings, one.log_id, log, clock, asked.append_time_us)
    own = log_tier(log.first, log.end, one.bytes, clock.now_us())
    tiers = Tiers(own, None if side is None else side.tier, None if objects is None else objects.tier)
    uploaded = [] if objects is None else [each.range for each in objects.held if each.range is not None]
    shown = readable(log.first, log.end, merged([*(() if side is None else side.held), *uploaded]))
    return {**one.as_dict(), **asdict(shown), "tiers": asdict(tiers)}


def list_from_files(settings: Settings) -> list[dict[str, Any]]:
    """Return all topics. No catalog is asked: table figures are those of the mover's last report."""
    report = read_json(status_path(settings))
    names = topic_names(LocalDisk(), settings.log_folder)
    ends = read_ends(LocalDisk(), settings.log_folder)[0] if names else {}
    return [_listed(settings, name, report, ends) for name in names]


def _listed(
    settings: Settings, name: TopicName, report: Mapping[str, Any] | None, ends: Mapping[str, Any]
) -> dict[str, Any]:
    one = summarize(LocalDisk(), settings.log_folder, name, ends)
    log = _log_side(settings, name, one)
    if log is None or one.log_id is None:
        return one.as_dict()
    held = reported_ranges(report, str(name), one.log_id, log)
    return {**one.as_dict(), **asdict(readable(log.first, log.end, held))}


def _log_side(settings: Settings, name: TopicName, one: LogSummary) -> LogSide | None:
    """Return None for a log that cannot be read, or was deleted and recreated meanwhile."""
    if one.problem is not None or one.end is None:
        return None
    try:
        record = read_topic_record(LocalDisk(), settings.log_folder, name)
    except (CorruptLog, FileNotFoundError):
        return None
    if record.log_id != one.log_id:
        return None
    return LogSide(one.first_offset, one.end, dropped_ranges(record.dropped))


def _history(settings: Settings, name: TopicName, log_id: str) -> Any:
    from frazil.lake.read.history import TableHistories

    return TableHistories(settings).of(name, log_id)


def _append_time_us(settings: Settings, name: TopicName, one: LogSummary, offset: int) -> int:
    """Read one row of the files; raises `OSError` if it was just removed."""
    files = [(each.base, each.path) for each in list_segments(LocalDisk(), topic_folder(settings.log_folder, name))]
    wanted = OffsetRange(offset, offset + 1)
    rows = next(read_range(LocalDisk(), str(one.log_id), files, wanted, stored_schema(one.schema)), None)
    if rows is None:
        raise FileNotFoundError(f"offset {offset} of {name}")
    return int(rows.column(APPEND_TIME.name).cast("int64")[0].as_py())
