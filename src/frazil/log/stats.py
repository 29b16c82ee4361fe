"""The figures of a topic over its tiers. They are defined here, once, for every face that shows them.

`first_offset`, `end` and `messages` are what a reader from `earliest` gets, from the table and the log together.
`tiers` says what each of the two holds, how far it lags behind, when that was learnt, and why if it is not known now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from frazil.core.offsets import OffsetRange
from frazil.log.guards import HeldBack

if TYPE_CHECKING:
    from frazil.log.topic_log import TopicLog


@dataclass(frozen=True, slots=True)
class Tier:
    """What one tier holds of a topic; None is not known. `lag_rows` are those at the end that it lacks.

    `lag_ms` is the age of the oldest of these. `error` is why the tier could not be asked: what stands beside it is
    then what was known at `learnt_us`.
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
class TableTier(Tier):
    """`bytes` of a table that holds several logs are not known of each."""

    table: str
    snapshot_id: int | None
    committed_ms: int | None


@dataclass(frozen=True, slots=True)
class Tiers:
    """`log` is None where a topic is read through its catalog alone; `table` where the topic has none and gets none."""

    log: Tier | None
    table: TableTier | None

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        log, table = told["log"], told["table"]
        return cls(None if log is None else Tier(**log), None if table is None else TableTier(**table))


@dataclass(frozen=True, slots=True)
class TableSide:
    """What the table holds of a topic, and which offsets can be read from it: disjoint ranges, in order."""

    tier: TableTier
    held: tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True)
class LogSide:
    """What a look at the table needs to know of the log: where its rows begin and end, and which offsets retention
    removed while no table was there to hold them."""

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
    """Of a log from `first` up to `end`, and of a table: what is below the log's first offset is read from it."""
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
    held_back: HeldBack | None
    tiers: Tiers

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        """From what `as_dict` gave."""
        held = told["held_back"]
        return cls(
            **{**told, "held_back": None if held is None else HeldBack(**held), "tiers": Tiers.of(told["tiers"])}
        )


def topic_figures(log: TopicLog, *, ask_table: bool = True) -> dict[str, Any]:
    """The fields of a `TopicStats`. Without the table, which takes a look at the catalog, they are of the log alone."""
    first, end = log.first_offset, log.visible_end
    side = log.history.side(log, first, end) if ask_table and log.history is not None else None
    return {
        **log_figures(log),
        **asdict(readable(first, end, () if side is None else side.held)),
        "tiers": Tiers(_log_tier(log, first, end), None if side is None else side.tier),
    }


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
        "failed": log.failed.message if log.failed else None,
        "held_back": log.held_back,
    }


def log_tier(first: int, end: int, size_bytes: int, now_us: int) -> Tier:
    """A log has all that its topic has at the end, and lags behind nothing."""
    return Tier(first, end, end - first, size_bytes, 0, 0, now_us, None)


def _log_tier(log: TopicLog, first: int, end: int) -> Tier:
    return log_tier(first, end, sum(segment.used_bytes for segment in log.segments), log.context.clock.now_us())
