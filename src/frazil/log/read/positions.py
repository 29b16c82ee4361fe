"""Resolve a start position, `earliest`, `latest`, an offset or a point in time, to an offset."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from frazil.core.errors import InvalidPosition, OffsetOutOfRange
from frazil.core.tiers import Tier, find_time, first_offset
from frazil.log.read.history import ColderTiers
from frazil.log.read.tiers import tiers_of
from frazil.log.topic_log import TopicLog

Start = str | int | datetime
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def resolve_start(log: TopicLog, start: Start) -> int:
    """The first offset to read of a log of this process."""
    return resolve(str(log.name), tiers_of(log), start, log.visible_end)


def resolve(topic: str, tiers: Sequence[Tier], start: Start, end: int) -> int:
    """The first offset to read. A time names the first row appended at or after it.

    `end` is where the log ends now.
    """
    check_start(start)
    if isinstance(start, datetime):
        return find_time(tiers, time_us(start), end)
    if start == "latest":
        return end
    if start == "earliest":
        return first_offset(tiers, end)
    assert isinstance(start, int)
    if not first_offset(tiers, end, start) <= start <= end:
        raise OffsetOutOfRange(topic, start, first_offset(tiers, end), end)
    return start


def earliest(log: TopicLog) -> int:
    """The first offset of a log of this process that can be read, from whatever tier."""
    return first_offset(tiers_of(log), log.visible_end)


def next_offset(log: TopicLog, offset: int) -> int:
    """The first offset behind a missing one that objects or files hold; not above it if there is none."""
    later = [one.first for one in log.colder.objects() if one.first > offset]
    return min([log.first_offset, *later]) if log.first_offset > offset else log.first_offset


def check_start(start: Start) -> None:
    """Validate a start position; the log or the table resolves it."""
    known = start in ("earliest", "latest") if isinstance(start, str) else isinstance(start, int | datetime)
    if isinstance(start, bool) or not known:
        raise InvalidPosition(f"start must be 'earliest', 'latest', an offset or a datetime, not {start!r}")
    if isinstance(start, datetime) and start.tzinfo is None:
        raise InvalidPosition("start: a datetime needs a time zone, for example datetime.now(timezone.utc)")


def time_us(time: datetime) -> int:
    """Convert a point in time to microseconds since 1970."""
    return (time - _EPOCH) // timedelta(microseconds=1)


def check_end(end: int | None) -> None:
    """Validate an end, which is an offset and may be beyond the log."""
    if end is not None and (isinstance(end, bool) or not isinstance(end, int) or end < 0):
        raise InvalidPosition(f"end must be an offset, not {end!r}")


def needs_lookup(log: TopicLog, start: Start) -> bool:
    """Whether resolving needs a disk or a table, which an event loop must not wait for."""
    if isinstance(start, datetime):
        return True
    removed = log.first_offset > 0 and log.colder != ColderTiers()
    return removed and (start == "earliest" or (isinstance(start, int) and start < log.first_offset))
