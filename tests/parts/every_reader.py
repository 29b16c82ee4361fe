"""One topic read by everyone who can read it: what one says, all must say."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql.types import BinaryType, LongType, StructField, StructType

import frazil
from frazil.core.settings import Settings
from frazil.lake.tables.schema import table_of
from frazil.node.query.session import SqlSession
from frazil.node.tiers.logs import FileView
from frazil.node.verify.proofs import prove
from frazil.node.verify.verify import TopicProof
from frazil.pipeline.source.options import parse_options
from frazil.pipeline.source.source import BatchSourceReader

FACES = ("embedded", "read_only", "spark", "sql")
_COLUMNS = StructType([StructField("offset", LongType()), StructField("value", BinaryType())])

Rows = list[tuple[int, bytes]]


class EveryReader:
    """`config` is the settings file, where the data folder alone does not say where the lake is.

    The Spark source runs in this process: its plan and its tasks, without a JVM.
    """

    def __init__(self, settings: Settings, topic: frazil.Topic, config: Path | None = None) -> None:
        self._settings = settings
        self._topic = topic
        self.name = table_of(topic.log.name)[0]
        self._place = {"config": str(config)} if config else {"data": str(settings.data)}

    def rows(self, face: str, start: int = 0) -> Rows:
        """Offsets and payloads in order, from the beginning or from an offset on."""
        found: Rows = getattr(self, f"_{face}")(start)
        return found

    def proof(self) -> TopicProof:
        (found,) = prove(self._settings, self._topic.name, lambda _: lambda _: None)
        return found

    def _embedded(self, start: int) -> Rows:
        return [(message.offset, message.payload) for message in self._topic.read(start or "earliest")]

    def _read_only(self, start: int) -> Rows:
        with frazil.open_read_only(self._settings) as node:
            messages = node.topic(self._topic.name).read(start or "earliest")
            return [(message.offset, message.payload) for message in messages]

    def _spark(self, start: int) -> Rows:
        bound = {"startingOffsets": f'{{"{self._topic.name}": {{"0": {start}}}}}'} if start else {}
        options = parse_options({"subscribe": self._topic.name, **self._place, **bound})
        reader = BatchSourceReader(options, _COLUMNS)
        batches = [batch for task in reader.partitions() for batch in reader.read(task)]
        return [(row["offset"], row["value"]) for batch in batches for row in batch.to_pylist()]

    def _sql(self, start: int) -> Rows:
        table = f'"{self.name.namespace}"."{self.name.table}"'
        query = f"select _offset, _payload from {table} where _offset >= {start} order by 1"
        with SqlSession(self._settings, FileView(self._settings)) as session:
            batches = list(session.run(query).batches)
        return [(row["_offset"], row["_payload"]) for batch in batches for row in batch.to_pylist()]
