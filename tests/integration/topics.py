"""What tests of tables share: a folder with topics, a mover over it, the rows of its tables, and some statements."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

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

JSON = "from_json(cast(_payload as string), 'user string, amount decimal(10,2), tags array<string>')"
TYPED = f"select _offset, order.user, order.amount, order.tags from (select _offset, {JSON} as order from topic)"
STATEMENTS = {
    "/shop/filtered": "select * from topic where _offset % 3 = 0",
    "/shop/projected": "-- by hand\nselect _topic_partition, upper(cast(_key as string)) as buyer from topic;",
    "/shop/typed": TYPED,
    "/shop/counted": f"with o as ({TYPED}) select user, count(*) as orders, sum(amount) as total from o group by user",
}
PAYLOADS = [
    json.dumps({"user": f"user{n % 7}", "amount": n / 4, "tags": ["a", "b"][: n % 3]}).encode() for n in range(100)
]
TIMES = ("_append_time", "_publish_time")


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


def computed(session: SparkSession, raw: Any, statement: str) -> list[dict[str, Any]]:
    """What Spark says the statement yields over the rows of a table that has them as they were."""
    session.createDataFrame(raw.scan().to_arrow()).createOrReplaceTempView("topic")
    try:
        return [row.asDict(recursive=True) for row in session.sql(statement.strip().removesuffix(";")).collect()]
    finally:
        session.catalog.dropTempView("topic")


def ordered(rows: list[dict[str, Any]], without: tuple[str, ...] = ()) -> list[str]:
    return sorted(repr({name: value for name, value in row.items() if name not in without}) for row in rows)
