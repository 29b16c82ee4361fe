"""What the table of a topic holds in addition to its log, for the figures of a topic in every interface.

The table itself reports its end, at a cost that is independent of its history. Which of the earlier offsets it holds
follows from the log's record of what retention removed without a table. Only if the number of rows does not match, as
after rows were deleted from the table, its files are examined. If the catalog does not answer, the mover's last report
is used, with its time and the reason.
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
from frazil.log.stats import LogSide, TableSide, TableTierFigures
from frazil.node.movers.table_progress import known_end

if TYPE_CHECKING:  # importing PyIceberg takes a second
    from frazil.lake.read.history import TableFigures, TableHistory

STATEMENT = "the table holds what a statement made of the rows, not the rows: they are read from the log alone"


@dataclass(frozen=True, slots=True)
class TableQuestion:
    """The log, the history to ask, and what is known without asking."""

    settings: Settings
    topic: TopicName
    log_id: str
    log: LogSide
    history: Callable[[], TableHistory | None]
    """None if there is no lake at all. It may raise; it is called where blocking is allowed."""
    report: Mapping[str, Any] | None
    append_time_us: Callable[[int], int]
    """Returns when a row of the log was appended."""


def table_side(asked: TableQuestion, clock: Clock) -> TableSide | None:
    """Return None for a topic that is not moved, and of which no table has anything."""
    embedded = asked.settings.embedded_catalog
    if embedded is not None and not embedded.exists():
        return _side(asked, clock, None, (), None)
    try:
        from frazil.lake.tables.look import in_time
    except ModuleNotFoundError as error:
        return _as_reported(asked, clock, f"catalog: {install_hint(error.name)}")
    answer = in_time(lambda: _look(asked))
    if answer.error is not None:
        return _as_reported(asked, clock, answer.error)
    found, held = answer.value or (None, ())
    return _side(asked, clock, found, held, STATEMENT if found is not None and found.transformed else None)


def reported_ranges(report: Mapping[str, Any] | None, topic: str, log_id: str, log: LogSide) -> tuple[OffsetRange, ...]:
    """Return what the table holds by the mover's report: for lists of topics, which ask no catalog."""
    known = known_end(report or {}, topic, log_id)
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
    """Return all offsets up to the table's end, except those that never got there."""
    return tuple(without(OffsetRange(0, end), (*log.dropped, *gaps))) if end else ()


def _as_reported(asked: TableQuestion, clock: Clock, error: str) -> TableSide:
    """Use the mover's last report. For a topic without one, the table is unknown."""
    known = known_end(asked.report or {}, str(asked.topic), asked.log_id)
    end, learnt_us = known if known is not None else (None, None)
    held = () if end is None else _recorded(asked.log, end)
    tier = TableTierFigures(
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
    tier = TableTierFigures(
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
    """The age of the oldest row that the table lacks; None if it cannot be read now."""
    if not _lag_rows(asked.log, table_end):
        return 0
    try:
        since_us = asked.append_time_us(max(table_end, asked.log.first))
    except (FrazilError, OSError):
        return None
    return max(0, clock.now_us() - since_us) // 1_000
