"""What the table of a topic holds beside its log: for the figures of a topic, at every face.

How far the table is, it says itself, and asking it costs no more with a long history. Which of the offsets before that
it holds follows from the log's record of what retention removed while there was no table. Only where the number of
rows does not fit that, as after rows were deleted from the table, are its files looked at. A catalog that gives no
answer leaves what the mover last told, with its time, and the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from frazil.core.clock import Clock
from frazil.core.coverage import total, without
from frazil.core.errors import FrazilError
from frazil.core.extras import install_hint
from frazil.core.names import TopicName
from frazil.core.offsets import OffsetRange
from frazil.core.settings import Settings
from frazil.log.stats import LogSide, TableSide, TableTier
from frazil.topics.floor import known_end

if TYPE_CHECKING:  # PyIceberg takes a second to import
    from frazil.lake.history import TableFigures, TableHistory

STATEMENT = "the table holds what a statement made of the rows, not the rows: they are read from the log alone"


@dataclass(frozen=True, slots=True)
class TableQuestion:
    """Of which log, who is asked, and what is known without asking."""

    settings: Settings
    topic: TopicName
    log_id: str
    log: LogSide
    history: Callable[[], TableHistory | None]
    """None where there is no lake at all. It may raise; it is called where that keeps nobody waiting."""
    told: Mapping[str, Any] | None
    append_time_us: Callable[[int], int]
    """When a row of the log was appended."""


def table_side(asked: TableQuestion, clock: Clock) -> TableSide | None:
    """None for a topic that is not moved, and of which no table has anything."""
    embedded = asked.settings.embedded_catalog
    if embedded is not None and not embedded.exists():
        return _side(asked, clock, None, (), None)
    try:
        from frazil.lake.look import in_time
    except ModuleNotFoundError as error:
        return _as_told(asked, clock, f"catalog: {install_hint(error.name)}")
    answer = in_time(lambda: _look(asked))
    if answer.error is not None:
        return _as_told(asked, clock, answer.error)
    found, held = answer.value or (None, ())
    return _side(asked, clock, found, held, STATEMENT if found is not None and found.transformed else None)


def told_ranges(told: Mapping[str, Any] | None, topic: str, log_id: str, log: LogSide) -> tuple[OffsetRange, ...]:
    """What the table holds as far as the mover told: for lists of topics, which ask no catalog."""
    known = known_end(told or {}, topic, log_id)
    return () if known is None else _recorded(log, known[0])


def _look(asked: TableQuestion) -> tuple[TableFigures | None, tuple[OffsetRange, ...]]:
    history = asked.history()
    found = None if history is None else history.figures()
    if history is None or found is None or found.transformed or not found.end:
        return found, ()
    held = _recorded(asked.log, found.end, found.gaps)
    if found.rows == found.ends - found.end + total(held):
        return found, held
    span = history.span_of_files()
    return found, () if span is None else tuple(without(span, found.gaps))


def _recorded(log: LogSide, end: int, gaps: tuple[OffsetRange, ...] = ()) -> tuple[OffsetRange, ...]:
    """All offsets up to the table's end but for those that never came there."""
    return tuple(without(OffsetRange(0, end), (*log.dropped, *gaps))) if end else ()


def _as_told(asked: TableQuestion, clock: Clock, error: str) -> TableSide:
    """What the mover knew of the table when it last told. A topic that it never told of has a table that is unknown."""
    known = known_end(asked.told or {}, str(asked.topic), asked.log_id)
    end, learnt_us = known if known is not None else (None, None)
    held = () if end is None else _recorded(asked.log, end)
    tier = TableTier(
        first=held[0].start if held else None,
        end=end,
        rows=total(held) if end is not None else None,
        bytes=None,
        lag_rows=None if end is None else _lag_rows(asked.log, end),
        lag_ms=None if end is None else _lag_ms(asked, clock, end),
        learnt_us=learnt_us,
        error=error,
        table=_table(asked),
        snapshot_id=None,
        committed_ms=None,
    )
    return TableSide(tier, held)


def _side(
    asked: TableQuestion, clock: Clock, found: TableFigures | None, held: tuple[OffsetRange, ...], error: str | None
) -> TableSide | None:
    if found is None and not asked.settings.of_topic(asked.topic).enabled:
        return None
    end = 0 if found is None else found.end
    tier = TableTier(
        first=held[0].start if held else None,
        end=end,
        rows=total(held) if error is None else None,
        bytes=0 if found is None else found.size_bytes,
        lag_rows=_lag_rows(asked.log, end),
        lag_ms=_lag_ms(asked, clock, end),
        learnt_us=clock.now_us(),
        error=error,
        table=_table(asked),
        snapshot_id=None if found is None else found.snapshot_id,
        committed_ms=None if found is None else found.committed_ms,
    )
    return TableSide(tier, held)


def _table(asked: TableQuestion) -> str:
    base = asked.topic.partition_of()[0]
    return f"{base.namespace}.{base.topic}"


def _lag_rows(log: LogSide, table_end: int) -> int:
    return max(0, log.end - max(table_end, log.first))


def _lag_ms(asked: TableQuestion, clock: Clock, table_end: int) -> int | None:
    """The age of the oldest row that the table lacks; None if that can't be read now."""
    if not _lag_rows(asked.log, table_end):
        return 0
    try:
        since_us = asked.append_time_us(max(table_end, asked.log.first))
    except (FrazilError, OSError):
        return None
    return max(0, clock.now_us() - since_us) // 1_000
