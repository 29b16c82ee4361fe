"""Opening a data folder so that a topic reads on into its table where the log no longer has the rows."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from frazil.core.clock import Clock
from frazil.core.disk import Disk, LocalDisk
from frazil.core.extras import needs
from frazil.core.offsets import OffsetRange, Place
from frazil.core.settings import Settings, check_lake_folder, settings_of
from frazil.log.dropped import dropped_ranges
from frazil.log.history import History, HistoryBatches
from frazil.log.stats import LogSide, TableSide
from frazil.log.storage import Storage, open_storage
from frazil.log.topic_log import TopicLog
from frazil.topics.floor import ToldStatus
from frazil.topics.freshness import append_time_us
from frazil.topics.guards import guards_of
from frazil.topics.tiers import TableQuestion, table_side

if TYPE_CHECKING:  # PyIceberg takes a second to import, and most who open a folder never read a table
    from frazil.lake.history import TableHistories, TableHistory


def open_topics(
    where: str | os.PathLike[str] | Settings | Mapping[str, Any] | None,
    *,
    disk: Disk | None = None,
    clock: Clock | None = None,
) -> Storage:
    """Open a data folder, made if it is not there; `None` keeps everything in memory.

    `where` is the folder, a settings file (`.yaml`), a mapping as such a file holds it, or a `Settings`.
    Retention removes only what the guards allow; see `topics.guards`.
    """
    return _opened(Settings.of_folder(None) if where is None else settings_of(where), disk, clock, moves=False)


def open_to_move(
    settings: Settings, *, moves: bool = True, disk: Disk | None = None, clock: Clock | None = None
) -> Storage:
    """The same for a process that moves rows to tables, or is meant to: its rows wait for the tables from now on."""
    return _opened(settings, disk, clock, moves=moves)


def _opened(settings: Settings, disk: Disk | None, clock: Clock | None, *, moves: bool) -> Storage:
    check_lake_folder(settings)
    storage = open_storage(settings, disk=disk, clock=clock, history_of=Histories(settings))
    try:
        storage.guards = guards_of(settings, disk or LocalDisk(), moves=moves)
    except BaseException:
        storage.close()
        raise
    return storage


class Histories:
    """The histories of a folder's logs. What reads tables is imported when the first of them is read."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._guard = threading.Lock()
        self._tables: TableHistories | None = None
        self._told = ToldStatus(settings) if settings.data is not None else None

    def __call__(self, log: TopicLog) -> History | None:
        return None if self._settings.data is None else _LateHistory(self, log)

    def of(self, log: TopicLog) -> TableHistory | None:
        """None where there is no lake at all: an embedded one is made by the mover, never by a reader."""
        with self._guard:
            if self._tables is None:
                embedded = self._settings.embedded_catalog
                if embedded is not None and not embedded.exists():
                    return None
                with needs():
                    from frazil.lake.history import TableHistories
                self._tables = TableHistories(self._settings)
        return self._tables.of(log.name, log.log_id, [one.log_id for one in log.former])

    def side(self, log: TopicLog, first: int, end: int) -> TableSide | None:
        """What the table holds of a log, by a look that is bounded and does not raise."""
        asked = TableQuestion(
            self._settings,
            log.name,
            log.log_id,
            LogSide(first, end, dropped_ranges(log.removal.dropped)),
            lambda: self.of(log),
            None if self._told is None else self._told.read(),
            lambda offset: append_time_us(log, offset),
        )
        return table_side(asked, log.context.clock)


class _LateHistory:
    def __init__(self, histories: Histories, log: TopicLog) -> None:
        self._histories = histories
        self._log = log

    @property
    def table(self) -> str:
        found = self._histories.of(self._log)
        return "" if found is None else str(found.name)

    def span(self) -> OffsetRange | None:
        found = self._histories.of(self._log)
        return None if found is None else found.span()

    def read(self, start: int, end: int, stored: pa.Schema, *, after: Place | None = None) -> HistoryBatches:
        found = self._histories.of(self._log)
        return _Nothing(start) if found is None else found.read(start, end, stored, after=after)

    def offset_at_time(self, time_us: int) -> int | None:
        found = self._histories.of(self._log)
        return None if found is None else found.offset_at_time(time_us)

    def places(self, offsets: Collection[int]) -> dict[int, Place]:
        found = self._histories.of(self._log)
        return {} if found is None else found.places(offsets)

    def side(self, log: TopicLog, first: int, end: int) -> TableSide | None:
        return self._histories.side(log, first, end)


class _Nothing:
    def __init__(self, offset: int) -> None:
        self.offset = offset

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        raise StopIteration

    def close(self) -> None:
        pass
