"""A topic for the mover: its log, its settings and its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from frazil.core.credentials import NO_CREDENTIALS, ClientCredentials
from frazil.core.errors import FrazilError
from frazil.core.offsets import OffsetRange
from frazil.core.settings import Settings
from frazil.core.settings.topics import TopicRules
from frazil.lake.tables.schema import TableLayout, TableName, table_of
from frazil.log.info import LogInfo
from frazil.node.movers.tick_report import TopicReport
from frazil.node.tiers.logs import files_of
from frazil.node.tiers.objects import task_objects
from frazil.pipeline.move.outputs import Derived
from frazil.pipeline.move.tasks import LogRange
from frazil.pipeline.transform.statement import Statement


@dataclass(frozen=True, slots=True)
class MovedTopic:
    """A log, the settings of its topic, and the tables derived from its rows."""

    info: LogInfo
    rules: TopicRules
    derived: Derived | None = None
    group: str = ""
    """Whose topic it is: topics of one group share the time of the mover with other groups."""
    error: FrazilError | None = None
    """Why it cannot be moved now."""

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
    def own_layout(self) -> TableLayout | None:
        """The layout of the topic's own table if it holds derived rows; None if it holds the topic's."""
        return None if self.derived is None else self.derived.tables.get(self.table)

    def is_result(self, table: TableName) -> bool:
        """Whether the table gets derived rows instead of the topic's."""
        return table != self.table or self.own_layout is not None

    @property
    def derived_tables(self) -> Mapping[TableName, TableLayout]:
        """The tables beside its own."""
        if self.derived is None:
            return {}
        return {table: layout for table, layout in self.derived.tables.items() if table != self.table}

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
        self,
        settings: Settings,
        wanted: OffsetRange,
        owner: str | None,
        credentials: ClientCredentials = NO_CREDENTIALS,
    ) -> LogRange:
        """Return what a task needs to read a range; `owner` is the address for remote rows."""
        info = self.info
        files, objects = tuple(files_of(info.files, wanted)), task_objects(settings, info.objects, wanted)
        place = (self.name, info.log_id, self.partition, wanted, files, info.stored_schema)
        return LogRange(*place, owner, info.folder, credentials, objects)
