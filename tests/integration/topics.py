"""What tests of tables share: a folder with topics, a mover over it, and the rows of its tables."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import frazil
from frazil.core.names import TopicName
from frazil.core.settings import Settings, make_settings
from frazil.lake.catalogs.opening import catalog_properties, open_catalog
from frazil.lake.tables.schema import table_of
from frazil.lake.tables.store import TableStore
from frazil.node.movers.log_source import OwnLogs
from frazil.node.movers.tick_report import TickReport
from frazil.pipeline.move.mover import Mover
from frazil.pipeline.spark.jobs import SparkJobs
from frazil.testing import FakeClock


class Lake:
    """Topics of one folder and their tables. A new `Lake` on the same folder is a mover that was started again."""

    def __init__(self, folder: Path, session: Any, topics: dict[str, Any], **sections: Any) -> None:
        values = {"data": str(folder), "topics": topics, **sections}
        self.settings: Settings = make_settings(values)
        self.session = session
        self.clock = FakeClock()

    def publish(self, topic: str, *payloads: bytes, key: bytes | None = None) -> None:
        with frazil.open(self.settings) as storage:
            storage.topic(topic).publish_many([frazil.Outgoing(each, key=key) for each in payloads])

    @contextlib.contextmanager
    def mover(self) -> Iterator[Mover]:
        properties = catalog_properties(self.settings)
        tables = TableStore(open_catalog(self.settings), properties.get("warehouse"), properties)
        with frazil.open(self.settings) as storage:
            yield Mover(
                self.settings,
                OwnLogs(storage),
                tables,
                SparkJobs(self.session, self.settings),
                self.clock,
                lambda _: None,
            )

    def move(self, ticks: int = 1) -> TickReport:
        with self.mover() as mover:
            for _ in range(ticks):
                report = mover.tick(all_of_it=True)
        return report

    def table(self, topic: str) -> Any:
        name, _ = table_of(TopicName.parse(topic))
        return open_catalog(self.settings).load_table(name.identifier)

    def rows(self, topic: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.table(topic).scan().to_arrow().to_pylist()
        return found
