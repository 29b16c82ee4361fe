"""A mover whose tasks run in this process, and the tables that it moves to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

import frazil
from frazil.core.clock import Clock
from frazil.core.settings import Settings
from frazil.lake.catalogs.opening import catalog_properties, open_catalog
from frazil.lake.tables.store import TableStore
from frazil.node.movers.log_source import LogSource, OwnLogs
from frazil.node.movers.tick_report import TickReport
from frazil.pipeline.move.jobs import JobRunner
from frazil.pipeline.move.mover import Mover
from frazil.testing import FakeClock
from frazil.testing.jobs import InProcessJobs


class MoverHere:
    """`meanwhile` is called between the plan and the commit of each tick."""

    def __init__(
        self,
        settings: Settings,
        storage: frazil.Storage,
        meanwhile: Callable[[], None] = lambda: None,
        *,
        jobs: JobRunner | None = None,
        clock: Clock | None = None,
        catalog: Catalog | None = None,
        source: LogSource | None = None,
    ) -> None:
        properties, self.clock = catalog_properties(settings), clock or FakeClock()
        self.catalog = catalog or open_catalog(settings)
        kept = settings.maintenance.snapshots_max
        tables = TableStore(self.catalog, properties.get("warehouse"), properties, kept, clock=self.clock)
        runner = jobs or InProcessJobs(meanwhile=meanwhile)
        self.mover = Mover(settings, source or OwnLogs(storage), tables, runner, self.clock, lambda _: None)

    def tick(self, *, all_of_it: bool = True) -> TickReport:
        return self.mover.tick(all_of_it=all_of_it)

    def errors(self) -> dict[str, str | None]:
        """The error of each topic after a tick."""
        return {name: topic.error for name, topic in self.tick().topics.items()}

    def table(self, topic: str) -> Table:
        return self.catalog.load_table(tuple(topic.strip("/").split("/")))

    def rows(self, topic: str, *columns: str) -> list[dict[str, Any]]:
        """The rows of a topic's table by offset, in these columns."""
        found = self.table(topic).scan().to_arrow().sort_by("_offset")
        rows: list[dict[str, Any]] = found.select(list(columns) or ["_offset", "_payload"]).to_pylist()
        return rows
