"""The figures of a topic over its tiers, defined once for every interface that shows them.

`first_offset`, `end` and `messages` are what a reader from `earliest` gets, from the table and the log together.
`tiers` has what each of the two holds, its lag, the time of that information, and the error if it is not available.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from frazil.core.coverage import merged
from frazil.core.offsets import OffsetRange
from frazil.core.stored_objects import StoredObject, held_from
from frazil.log.retention.guards import RetentionHold

if TYPE_CHECKING:
    from frazil.log.topic_log import TopicLog


@dataclass(frozen=True, slots=True)
class TierFigures:
    """What one tier holds of a topic; None means unknown. `lag_rows` counts the rows at the end that it lacks.

    `lag_ms` is the age of the oldest of these. `error` says why the tier could not be asked: the other fields are then
    as of `learnt_us`.
    """

    first: int | None
    end: int | None
    rows: int | None
    bytes: int | None
    lag_rows: int | None
    lag_ms: int | None = field(compare=False)
    learnt_us: int | None = field(compare=False)
    error: str | None


@dataclass(frozen=True, slots=True)
class TableTierFigures(TierFigures):
    """`bytes` of a table that holds several logs are unknown for each."""

    table: str
    snapshot_id: int | None
    committed_ms: int | None


@dataclass(frozen=True, slots=True)
class Tiers:
    """`log` is None if a topic is read through its catalog alone; `table` is None if the topic has
    none and gets none; `objects` is None if it is not uploaded."""

    log: TierFigures | None
    table: TableTierFigures | None
    objects: TierFigures | None = None

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        log, table, objects = stored["log"], stored["table"], stored.get("objects")
        return cls(
            None if log is None else TierFigures(**log),
            None if table is None else TableTierFigures(**table),
            None if objects is None else TierFigures(**objects),
        )


@dataclass(frozen=True, slots=True)
class TableSide:
    """What the table holds of a topic, and which offsets can be read from it: disjoint ranges, in order."""

    tier: TableTierFigures
    held: tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True)
class ObjectSide:
    """What the objects hold of a topic, and which offsets can be read from them."""

    tier: TierFigures
    held: tuple[StoredObject, ...]


@dataclass(frozen=True, slots=True)
class LogSide:
    """What a query of the table needs to know of the log: where its rows, with those in objects, begin and end, and
    which offsets retention removed without a table."""

    first: int
    end: int
    dropped: tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True)
class Readable:
    """What a reader from `earliest` gets."""

    first_offset: int
    end: int
    messages: int


def readable(first: int, end: int, held: Sequence[OffsetRange]) -> Readable:
    """Combine a log from `first` up to `end` with a table, from which older offsets are read."""
    below = [OffsetRange(one.start, min(one.end, first)) for one in held if one.start < first]
    return Readable(below[0].start if below else first, end, sum(map(len, below)) + end - first)


@dataclass(frozen=True, slots=True)
class TopicStats:
    """Figures of one topic. `end` is the next offset; rows before `durable_end` survive a power cut."""

    topic: str
    log_id: str
    typed: bool
    messages: int
    bytes: int
    first_offset: int
    end: int
    durable_end: int
    unsynced: int
    segments: int
    reserved_bytes: int
    cached_from: int | None
    queued_bytes: int
    last_append_time_us: int | None
    torn_tail: str | None
    failed: str | None
    held_back: RetentionHold | None
    tiers: Tiers

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        """Rebuild from the result of `as_dict`."""
        held = stored["held_back"]
        return cls(
            **{
                **stored,
                "held_back": None if held is None else RetentionHold(**held),
                "tiers": Tiers.of(stored["tiers"]),
            }
        )


def topic_figures(log: TopicLog, *, ask_table: bool = True) -> dict[str, Any]:
    """Return the fields of a `TopicStats`. Without the table, which needs a query of the catalog, they cover the log
    alone."""
    first, end = log.first_offset, log.visible_end
    objects = None if log.colder.figures is None else log.colder.figures.side(log, ask=ask_table)
    oldest = first if objects is None else held_from(first, objects.held)
    side = log.history.side(log, oldest, end) if ask_table and log.history is not None else None
    held = () if side is None else side.held
    in_objects = [] if objects is None else _ranges(objects.held)
    tiers = Tiers(
        _log_tier(log, first, end),
        None if side is None else side.tier,
        None if objects is None else objects.tier,
    )
    return {
        **log_figures(log),
        **asdict(readable(first, end, merged([*held, *in_objects]) if ask_table else held)),
        "tiers": tiers,
    }


def known_in_objects(log: TopicLog) -> list[OffsetRange]:
    """Return what objects hold as far as this process knows it, without asking anybody."""
    side = None if log.colder.figures is None else log.colder.figures.side(log, ask=False)
    return [] if side is None else _ranges(side.held)


def _ranges(objects: Sequence[StoredObject]) -> list[OffsetRange]:
    return [one.range for one in objects if one.range is not None]


def topic_stats(log: TopicLog, *, ask_table: bool = True) -> TopicStats:
    return TopicStats(**topic_figures(log, ask_table=ask_table))


def log_figures(log: TopicLog) -> dict[str, Any]:
    segments = log.segments
    return {
        "topic": str(log.name),
        "log_id": log.log_id,
        "typed": log.own_schema is not None,
        "bytes": sum(segment.used_bytes for segment in segments),
        "durable_end": log.durable_end,
        "unsynced": log.written_end - log.durable_end,
        "segments": len(segments),
        "reserved_bytes": sum(segment.allocated_bytes for segment in segments),
        "cached_from": log.cache.first_offset,
        "queued_bytes": log.queued_bytes,
        "last_append_time_us": segments[-1].last_time_us if segments else None,
        "torn_tail": str(log.torn.kept_as) if log.torn else None,
        "failed": log.problem.message if log.problem else None,
        "held_back": log.held_back,
    }


def log_tier(first: int, end: int, size_bytes: int, now_us: int) -> TierFigures:
    """A log always has the end of its topic: its lag is 0."""
    return TierFigures(first, end, end - first, size_bytes, 0, 0, now_us, None)


def _log_tier(log: TopicLog, first: int, end: int) -> TierFigures:
    return log_tier(first, end, sum(segment.used_bytes for segment in log.segments), log.context.clock.now_us())
