"""Open a data folder so that a topic's reader continues into its table for rows that the log no longer has."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from frazil.core.clock import Clock, SystemClock
from frazil.core.disk import Disk, LocalDisk
from frazil.core.errors import InvalidSettings
from frazil.core.extras import needs
from frazil.core.offsets import OffsetRange, Place
from frazil.core.settings import Settings, check_lake_folder, settings_of
from frazil.core.tiers import Extent, Gone, Tier, TierBatches
from frazil.log.metrics import LogMetrics
from frazil.log.read.history import ColderTiers
from frazil.log.retention.dropped import dropped_ranges
from frazil.log.retention.guards import Guard
from frazil.log.stats import LogSide, TableSide
from frazil.log.storage import Storage, open_storage
from frazil.log.topic_log import TopicLog
from frazil.log.write.stored_groups import GroupStores
from frazil.node.member.requirements import check_cluster
from frazil.node.movers.table_progress import MoverStatus, status_of
from frazil.node.retention import guards_of
from frazil.node.tiers.table_figures import TableQuestion, table_side
from frazil.node.topics.freshness import append_time_us

if TYPE_CHECKING:  # importing PyIceberg takes a second, and most users of a folder never read a table
    from frazil.lake.read.history import TableHistories, TableHistory
    from frazil.lake.read.tier import TableTier
    from frazil.node.objects.parts import ObjectParts
    from frazil.node.publish.traces import Traces
    from frazil.node.telemetry.own.exporter import OwnTelemetry


def open_topics(
    where: str | os.PathLike[str] | Settings | Mapping[str, Any] | None,
    *,
    disk: Disk | None = None,
    clock: Clock | None = None,
) -> Storage:
    """Open a data folder, creating it if it does not exist; `None` keeps everything in memory.

    `where` is the folder, a settings file (`.yaml`), an equivalent mapping, or a `Settings`. Retention removes only
    what the guards allow; see `node.retention`.
    """
    return _opened(Settings.of_folder(None) if where is None else settings_of(where), disk, clock, moves=False)


def open_to_move(
    settings: Settings,
    *,
    moves: bool = True,
    disk: Disk | None = None,
    clock: Clock | None = None,
    status: MoverStatus | None = None,
    serves: bool = False,
) -> Storage:
    """Open a data folder in a process that moves rows, or should: retention keeps rows until they are in their tables.

    `status` is the mover's last report in this process; if None, it is read from the file. Only a process that `serves`
    opens the folder of a broker of a cluster: it opens the topics that it owns by then.
    """
    return _opened(settings, disk, clock, moves=moves, status=status, serves=serves)


def _opened(
    settings: Settings,
    disk: Disk | None,
    clock: Clock | None,
    *,
    moves: bool,
    status: MoverStatus | None = None,
    serves: bool = False,
) -> Storage:
    check_lake_folder(settings)
    check_cluster(settings, serves=serves)
    histories = Histories(settings, status)

    def guards() -> list[Guard]:
        """Once the folder is owned: object parts open the metadata store, which may be a file in it."""
        found = guards_of(settings, disk or LocalDisk(), moves=moves)
        if settings.objects.enabled:
            histories.parts = _object_parts(settings, clock or SystemClock())
            found = [*found, histories.parts.guard]
        return found

    def groups() -> GroupStores | None:
        return None if histories.parts is None else histories.parts.acks

    try:
        storage = open_storage(
            settings, disk=disk, clock=clock, colder_of=histories, guards_of=guards, groups_of=groups
        )
    except BaseException:
        if histories.parts is not None:
            histories.parts.close()
        raise
    if settings.cluster.enabled:
        storage.admission.withhold_all()
    if histories.parts is not None:
        histories.parts.start(storage)
    return storage


def _object_parts(settings: Settings, clock: Clock) -> ObjectParts:
    with needs(lambda hint: InvalidSettings(f"objects.enabled: {hint}", field="objects.enabled")):
        from frazil.node.objects.parts import ObjectParts
    return ObjectParts(settings, clock)


class Histories:
    """The histories of a folder's logs. Modules that read tables are imported on the first read."""

    def __init__(self, settings: Settings, status: MoverStatus | None = None) -> None:
        self._settings = settings
        self._guard = threading.Lock()
        self._tables: TableHistories | None = None
        self._status = status or status_of(settings)
        self.parts: ObjectParts | None = None
        """The object tier of the folder; None if it is off."""

    def __call__(self, log: TopicLog) -> ColderTiers:
        table = None if self._settings.data is None else _LateHistory(self, log)
        if self.parts is None:
            return ColderTiers(table)
        tier = self.parts.tier_of(log)
        return ColderTiers(table, (tier,), tier.announced, tier)

    def of(self, log: TopicLog) -> TableHistory | None:
        """Return None if there is no lake at all: the mover creates an embedded one, never a reader."""
        with self._guard:
            if self._tables is None:
                embedded = self._settings.embedded_catalog
                if embedded is not None and not embedded.exists():
                    return None
                with needs():
                    from frazil.lake.read.history import TableHistories
                self._tables = TableHistories(self._settings)
        return self._tables.of(log.name, log.log_id, [one.log_id for one in log.former])

    def side(self, log: TopicLog, first: int, end: int) -> TableSide | None:
        """Return what the table holds of a log, with a timeout and without raising."""
        asked = TableQuestion(
            self._settings,
            log.name,
            log.log_id,
            LogSide(first, end, dropped_ranges(log.removal.dropped)),
            lambda: self.of(log),
            self._status.read(),
            lambda offset: append_time_us(log, offset),
        )
        return table_side(asked, log.context.clock)


class _LateHistory:
    """The table of a log as its coldest tier, looked up for each call: the mover may create it at any time."""

    is_in_memory = False

    def __init__(self, histories: Histories, log: TopicLog, after: Place | None = None) -> None:
        self._histories = histories
        self._log = log
        self._after = after

    @property
    def table(self) -> str:
        found = self._histories.of(self._log)
        return "" if found is None else str(found.name)

    def from_place(self, after: Place) -> Tier:
        return _LateHistory(self._histories, self._log, after)

    def may_hold(self, offset: int) -> bool:
        return offset < self._log.first_offset

    def extent(self) -> Extent | None:
        found = self._tier()
        return None if found is None else found.extent()

    def find(self, time_us: int) -> int | None:
        found = self._tier()
        return None if found is None else found.find(time_us)

    def batches(self, wanted: OffsetRange) -> TierBatches:
        found = self._tier()
        if found is None:
            raise Gone(wanted.start)
        return _CountedBatches(found.batches(wanted), self._log.context.metrics)

    def places(self, offsets: Collection[int]) -> dict[int, Place]:
        found = self._histories.of(self._log)
        return {} if found is None else found.places(offsets)

    def side(self, log: TopicLog, first: int, end: int) -> TableSide | None:
        return self._histories.side(log, first, end)

    def _tier(self) -> TableTier | None:
        found = self._histories.of(self._log)
        if found is None:
            return None
        with needs():
            from frazil.lake.read.tier import TableTier
        return TableTier(found, self._log.schema, self._after)


class _CountedBatches:
    """Batches of a table, counted in the metrics as read from there."""

    def __init__(self, batches: TierBatches, metrics: LogMetrics) -> None:
        self._batches = batches
        self._metrics = metrics

    @property
    def offset(self) -> int:
        return self._batches.offset

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = next(self._batches)
        self._metrics.read_from_table()
        return batch

    def close(self) -> None:
        self._batches.close()


def own_telemetry_of(settings: Settings, clock: Clock) -> OwnTelemetry | None:
    if not settings.telemetry.own:
        return None
    with needs(lambda hint: InvalidSettings(f"telemetry.own: {hint}, or leave it out")):
        from frazil.node.telemetry.own.exporter import OwnTelemetry
    return OwnTelemetry(settings, clock)


def traces_of(settings: Settings, clock: Clock, own: OwnTelemetry | None = None) -> Traces | None:
    """Import OpenTelemetry only if traces are configured: it is an extra, and slow to import."""
    if settings.traces.endpoint is None and own is None:
        return None
    setting = "telemetry.own" if settings.traces.endpoint is None else "traces.endpoint"
    with needs(lambda hint: InvalidSettings(f"{setting}: {hint}, or leave it out")):
        from frazil.node.publish.traces import Traces
    traces = Traces(settings, clock, None if own is None else own.put_spans)
    if own is not None:
        own.flush_spans = traces.flush
    return traces
