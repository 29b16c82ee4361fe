"""A topic for the mover: its log, its settings and its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from frazil.core.credentials import NO_CREDENTIALS, ClientCredentials
from frazil.core.offsets import OffsetRange
from frazil.core.settings.topics import TopicRules
from frazil.lake.tables.schema import TableName, table_of
from frazil.log.info import LogInfo
from frazil.node.movers.tick_report import TopicReport
from frazil.pipeline.move.outputs import Derived
from frazil.pipeline.move.tasks import LogRange
from frazil.pipeline.transform.statement import Statement


@dataclass(frozen=True, slots=True)
class MovedTopic:
    """A log, the settings of its topic, and the tables derived from its rows."""

    info: LogInfo
    rules: TopicRules
    derived: Derived | None = None

    @property
    def name(self) -> str:
        return str(self.info.topic)

    @property
    def table(self) -> TableName:
        """The topic's own table."""
        return table_of(self.info.topic)[0]

    @property
    def partition(self) -> int:
        return table_of(self.info.topic)[1]

    @property
    def derived_tables(self) -> Mapping[TableName, pa.Schema]:
        return {} if self.derived is None else self.derived.tables

    @property
    def tables(self) -> tuple[TableName, ...]:
        return (self.table, *self.derived_tables)

    @property
    def stored(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.info.stored_schema))

    @property
    def statement(self) -> Statement | None:
        return None if self.rules.sql is None else Statement(self.rules.setting("sql"), self.rules.sql)

    def report(self, table_end: int) -> TopicReport:
        return TopicReport(self.name, self.info.log_id, str(self.table), self.info.durable_end, table_end, 0.0)

    def log_range(
        self, wanted: OffsetRange, owner: str | None, credentials: ClientCredentials = NO_CREDENTIALS
    ) -> LogRange:
        """Return what a task needs to read a range; `owner` is the address for remote rows."""
        info = self.info
        files = tuple(_files_of(info, wanted))
        return LogRange(
            self.name, info.log_id, self.partition, wanted, files, info.stored_schema, owner, info.folder, credentials
        )


def _files_of(info: LogInfo, wanted: OffsetRange) -> list[tuple[int, Path]]:
    """Return the segments that overlap a range."""
    found = []
    for index, (base, path) in enumerate(info.files):
        end = info.files[index + 1][0] if index + 1 < len(info.files) else wanted.end
        if base < wanted.end and end > wanted.start:
            found.append((base, path))
    return found
