"""A mover that a test works by hand: one topic, up to an offset, in so many files. It is the product's own mover, with
its tasks run in this process."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import frazil
from frazil.core.clock import Clock
from frazil.core.credentials import NO_CREDENTIALS
from frazil.core.offsets import OffsetRange
from frazil.core.rows import stored_schema
from frazil.core.settings import Settings
from frazil.lake.catalogs.opening import catalog_properties, open_catalog
from frazil.lake.read.queryable import committed_end
from frazil.lake.tables.schema import TableName, table_of
from frazil.lake.tables.store import TableStore
from frazil.log.info import LogInfo, info_of
from frazil.log.retention.guards import Guard
from frazil.log.storage import open_storage
from frazil.node.opening import Histories
from frazil.pipeline.move.mover import Mover
from frazil.pipeline.move.tasks import RangeInput, RangeOutput
from frazil.telemetry.signals import signal_of
from frazil.testing import FakeClock
from frazil.testing.jobs import InProcessJobs

TICKS_MAX = 100


class HandMover:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.catalog = open_catalog(settings)
        properties = catalog_properties(settings)
        self.tables = TableStore(self.catalog, properties.get("warehouse"), properties)
        self._jobs, self._source = _InPieces(), _OneLog()
        self._mover = Mover(settings, self._source, self.tables, self._jobs, FakeClock(), lambda _: None)

    def table(self, topic: frazil.Topic):  # type: ignore[no-untyped-def]
        return self.catalog.load_table(self.name(topic).identifier)

    def name(self, topic: frazil.Topic) -> TableName:
        return table_of(topic.log.name)[0]

    def end(self, topic: frazil.Topic) -> int:
        """How far the table is; it is made if there is none."""
        name, partition = table_of(topic.log.name)
        if topic.schema is not None and signal_of(topic.log.name, topic.schema) is not None:
            return committed_end(self.catalog, name, topic.log.log_id).end  # the mover makes tables of telemetry
        self.tables.ensure(name, stored_schema(topic.schema))
        token = self.tables.token(name, topic.log.log_id, partition)
        return 0 if token is None else token.end

    def move(self, topic: frazil.Topic, end: int | None = None, files: int = 1) -> int:
        """Move what the table lacks, up to `end`, as that many files or so; returns how far the table is."""
        info, start = info_of(topic.log, None), self.end(topic)
        end = info.durable_end if end is None else end
        if start >= end:
            return start
        self._jobs.pieces, self._source.info = files, replace(info, durable_end=end)
        for _ in range(TICKS_MAX):
            report = self._mover.tick(all_of_it=True).topics[str(info.topic)]
            if report.error is not None:
                raise frazil.FrazilError(report.error)
            if report.table_end >= end:
                return report.table_end
        raise AssertionError(f"{info.topic} is not moved in {TICKS_MAX} ticks")


class _OneLog:
    """The log that is to be moved now, as far as it is to be moved."""

    address = None
    credentials = NO_CREDENTIALS
    info: LogInfo

    def logs(self) -> list[LogInfo]:
        return [self.info]


class _InPieces(InProcessJobs):
    """Cuts each range into so many pieces, where a plan would have cut a larger one."""

    pieces = 1

    def run(self, tasks: Sequence[Sequence[RangeInput]]) -> list[RangeOutput]:
        return super().run([[piece for one in task for piece in self._cut(one)] for task in tasks])

    def _cut(self, one: RangeInput) -> list[RangeInput]:
        start, end = one.source.range.start, one.source.range.end
        bounds = sorted({start + (end - start) * at // self.pieces for at in range(self.pieces + 1)})
        ranges = [OffsetRange(low, high) for low, high in itertools.pairwise(bounds)]
        return [replace(one, source=replace(one.source, range=each)) for each in ranges]


def open_guarded(settings: Settings, *guards: Guard, clock: Clock | None = None) -> frazil.Storage:
    """A storage whose retention asks these guards alone, and reads on into its tables as every storage does."""
    return open_storage(settings, clock=clock, colder_of=Histories(settings), guards_of=lambda: guards)


class Floor:
    """Lets retention remove what the table has, as the mover's word does for a serving process."""

    def __init__(self) -> None:
        self.ends: dict[str, int] = {}

    name = "table"
    holds_rows = True

    def concerns(self, log: object) -> bool:
        return True

    def close(self) -> None:
        pass

    def floor(self, log: object) -> int:
        return self.ends.get(log.log_id, 0)  # type: ignore[attr-defined]
