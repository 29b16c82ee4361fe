"""Topics of a folder that nobody serves, described from its files and their tables as a server describes its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from frazil.core.clock import SystemClock
from frazil.core.disk import LocalDisk
from frazil.core.errors import CorruptLog
from frazil.core.json_file import read_json
from frazil.core.names import TopicName
from frazil.core.offsets import OffsetRange
from frazil.core.partitions import partitions_of
from frazil.core.rows import APPEND_TIME, stored_schema
from frazil.core.settings import Settings
from frazil.log.catalog import read_topic_record
from frazil.log.check import read_ends
from frazil.log.dropped import dropped_ranges
from frazil.log.folder import topic_folder, topic_names
from frazil.log.ranges import read_range
from frazil.log.recovery import list_segments
from frazil.log.stats import LogSide, Tiers, log_tier, readable
from frazil.log.summary import TopicSummary, summed
from frazil.log.survey import describe_topic, summarize
from frazil.topics.floor import status_path
from frazil.topics.tiers import TableQuestion, table_side, told_ranges


def describe_from_files(settings: Settings, name: TopicName) -> dict[str, Any]:
    """A summary with `tiers`, None of a topic that can't be read, and `partitions`, whose sums it has.

    `held_back` is None: only the process that owns the folder asks the guards of retention.
    """
    there = topic_names(LocalDisk(), settings.log_folder)
    partitions = [] if name in there else partitions_of(name, there)
    if partitions:
        told, ends = read_json(status_path(settings)), read_ends(LocalDisk(), settings.log_folder)[0]
        found = [_listed(settings, one, told, ends) for one in partitions]
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
    tiers = Tiers(log_tier(log.first, log.end, one.bytes, clock.now_us()), None if side is None else side.tier)
    shown = readable(log.first, log.end, () if side is None else side.held)
    return {**one.as_dict(), **asdict(shown), "tiers": asdict(tiers)}


def list_from_files(settings: Settings) -> list[dict[str, Any]]:
    """All topics. No catalog is asked: what the tables hold is what the mover told last."""
    told = read_json(status_path(settings))
    names = topic_names(LocalDisk(), settings.log_folder)
    ends = read_ends(LocalDisk(), settings.log_folder)[0] if names else {}
    return [_listed(settings, name, told, ends) for name in names]


def _listed(
    settings: Settings, name: TopicName, told: Mapping[str, Any] | None, ends: Mapping[str, Any]
) -> dict[str, Any]:
    one = summarize(LocalDisk(), settings.log_folder, name, ends)
    log = _log_side(settings, name, one)
    if log is None or one.log_id is None:
        return one.as_dict()
    held = told_ranges(told, str(name), one.log_id, log)
    return {**one.as_dict(), **asdict(readable(log.first, log.end, held))}


def _log_side(settings: Settings, name: TopicName, one: TopicSummary) -> LogSide | None:
    """None of a log that can't be read, or was deleted and made again during the look."""
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
    from frazil.lake.history import TableHistories

    return TableHistories(settings).of(name, log_id)


def _append_time_us(settings: Settings, name: TopicName, one: TopicSummary, offset: int) -> int:
    """One row of the files; `OSError` if it was just removed."""
    files = [(each.base, each.path) for each in list_segments(LocalDisk(), topic_folder(settings.log_folder, name))]
    wanted = OffsetRange(offset, offset + 1)
    rows = next(read_range(LocalDisk(), str(one.log_id), files, wanted, stored_schema(one.schema)), None)
    if rows is None:
        raise FileNotFoundError(f"offset {offset} of {name}")
    return int(rows.column(APPEND_TIME.name).cast("int64")[0].as_py())
