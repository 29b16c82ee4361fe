"""Frazil and another engine on one lake: the real mover, its tasks in this process, and Spark SQL with Iceberg's own
runtime.

To the lake they are strangers: one commits through PyIceberg, the other through Iceberg's Java library.
"""

from __future__ import annotations

import contextlib
import math
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
from pyiceberg.table import Table
from pyspark.sql import SparkSession

import frazil
from frazil.core.clock import SystemClock
from frazil.core.settings import Settings
from frazil.lake.catalogs.opening import catalog_properties, open_catalog
from frazil.lake.tables.store import TableStore
from frazil.log.storage import Storage
from frazil.node.movers.log_source import OwnLogs
from frazil.node.movers.tick_report import TickReport
from frazil.pipeline.move.mover import Mover
from frazil.testing.jobs import InProcessJobs
from parts.meddling import Meddling
from parts.spark_iceberg import iceberg_options


class World:
    """`before_commit`, once set, is called between the mover's look at the table and its next commit."""

    def __init__(self, settings: Settings, storage: Storage, session: SparkSession | None) -> None:
        self.settings = settings
        self.storage = storage
        self.session = session
        self.before_commit: Callable[[], Any] | None = None
        self.meddling_failed: Exception | None = None
        self.namespace = f"ns_{uuid.uuid4().hex[:12]}"
        properties = catalog_properties(settings)
        self.catalog = Meddling(open_catalog(settings), self._on_commit)
        self.store = TableStore(self.catalog, properties.get("warehouse"), properties)  # type: ignore[arg-type]
        self.mover = Mover(settings, OwnLogs(storage), self.store, InProcessJobs(), SystemClock(), lambda _: None)

    def topic(self, name: str, schema: pa.Schema | None = None) -> frazil.Topic:
        return self.storage.topic(f"/{self.namespace}/{name}", schema=schema)

    def publish(self, name: str, count: int) -> None:
        topic = self.topic(name)
        end = topic.stats().end
        topic.publish_many([f"{name} {number}".encode() for number in range(end, end + count)])

    def move(self) -> TickReport:
        return self.mover.tick(all_of_it=True)

    def moved(self) -> int:
        """Move all, without errors; how many rows. A column dropped during a move has its rows planned anew, once."""
        first = self._moved_some()
        report = self._moved_some() if first.lag_rows else first
        assert report.lag_rows == 0
        return report.rows

    def _moved_some(self) -> TickReport:
        report = self.move()
        assert self.meddling_failed is None
        assert [topic.error for topic in report.topics.values() if topic.error] == []
        return report

    def sql_name(self, name: str) -> str:
        return f"{self.settings.catalog.name}.{self.namespace}.`{name}`"

    def sql(self, text: str, name: str = "orders") -> pa.Table:
        """`{table}` is the table, `{call}` begins a procedure and `{name}` is how that is told the table."""
        filled = text.format(
            table=self.sql_name(name),
            call=f"CALL {self.settings.catalog.name}.system.",
            name=f"table => '{self.namespace}.{name}'",
        )
        assert self.session is not None, "there is no other engine"
        return self.session.sql(filled).toArrow()

    def table(self, name: str = "orders") -> Table:
        found: Table = self.catalog.load_table((self.namespace, name))
        return found

    def by_pyiceberg(self, name: str = "orders") -> list[dict[str, Any]]:
        return plain(self.table(name).scan().to_arrow())

    def by_spark(self, name: str = "orders") -> list[dict[str, Any]]:
        return plain(self.sql("SELECT * FROM {table}", name))

    def offsets(self, name: str = "orders") -> list[int]:
        """Read by both engines, in order, doubles and all."""
        ours = self.table(name).scan(selected_fields=("_offset",)).to_arrow()["_offset"].to_pylist()
        theirs = self.sql("SELECT _offset FROM {table}", name)["_offset"].to_pylist()
        assert sorted(ours) == sorted(theirs)
        return sorted(ours)

    def snapshot_id(self, name: str = "orders") -> int:
        found = self.table(name).metadata.current_snapshot_id
        assert found is not None
        return found

    def _on_commit(self, number: int, commit: Callable[[], Any]) -> Any:
        meddle, self.before_commit = self.before_commit, None
        if meddle is not None:
            try:
                meddle()
            except Exception as error:
                self.meddling_failed = error  # the mover takes it for a lost answer
                raise
        return commit()


@contextlib.contextmanager
def world(settings: Settings, session: SparkSession | None) -> Iterator[World]:
    """Under a catalog name of its own, for all worlds share one session: each new one would start Python anew.

    Without a session there is the mover alone.
    """
    catalog = settings.catalog.model_copy(update={"name": f"c{uuid.uuid4().hex}"})
    settings = settings.model_copy(update={"catalog": catalog})
    if session is not None:
        for name, value in iceberg_options(settings).items():
            session.conf.set(name, value)
    with frazil.open(settings) as storage:
        yield World(settings, storage, session)


def plain(rows: pa.Table) -> list[dict[str, Any]]:
    """Rows by offset, in values that are equal when the rows are, whichever engine read them."""
    return sorted((_plain(row) for row in rows.to_pylist()), key=lambda row: int(row["_offset"]))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and (math.isnan(value) or value == 0):
        return repr(value)  # NaN equals itself, and -0.0 is not 0.0
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(timezone.utc)
    return value
