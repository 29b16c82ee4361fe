"""Every way to read a topic, each as offsets and payloads. A face that can't answer raises `FrazilError`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa
from promises import Rows
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from frazil import FrazilError, Settings, Storage
from frazil.core.names import TopicName
from frazil.core.offsets import OffsetRange
from frazil.lake.tables.schema import table_of
from frazil.log.info import log_info
from frazil.node.query.session import SqlSession
from frazil.node.read_only import open_read_only
from frazil.node.tiers.logs import FileView
from frazil.node.verify.proofs import prove
from frazil.node.verify.verify import TopicProof
from frazil.pipeline.source.options import parse_options
from frazil.pipeline.source.source import BatchSourceReader

SPARK_COLUMNS = StructType([StructField("offset", LongType()), StructField("value", BinaryType())])


def _rows(batches: Iterable[pa.RecordBatch]) -> Rows:
    found: Rows = []
    for batch in batches:
        found += zip(batch.column("_offset").to_pylist(), batch.column("_payload").to_pylist(), strict=True)
    return found


def embedded(storage: Storage, name: str) -> Rows:
    """The reader of the process that owns the folder, across log and table."""
    return _rows(storage.topic(name, create=False).read_batches("earliest"))


def log_files(storage: Storage, name: str) -> Rows:
    """What the log alone holds durably, by the files, as tasks and other processes read it."""
    info = log_info(storage, name)
    if info.first_offset == info.durable_end:
        return []
    return _rows(FileView(storage.settings).read(info, OffsetRange(info.first_offset, info.durable_end)))


def read_only(settings: Settings, name: str) -> tuple[str, Rows]:
    """A process that has the catalog alone: the log's id and its rows."""
    with open_read_only(settings) as storage:
        topic = storage.topic(name)
        return topic.stats().log_id, _rows(topic.read_batches("earliest"))


def sql(settings: Settings, name: str) -> Rows:
    table = table_of(TopicName.parse(name))[0]
    with SqlSession(settings, FileView(settings)) as session:
        query = f'SELECT _offset, _payload FROM "{table.namespace}"."{table.table}" ORDER BY _offset'
        return _rows(session.run(query).batches)


def spark_source(settings: Settings, name: str) -> Rows:
    """The Spark source, driven as Spark drives it, without Spark."""
    reader = BatchSourceReader(parse_options({"subscribe": name, "data": str(settings.data)}), SPARK_COLUMNS)
    found: Rows = []
    for task in reader.partitions():
        for batch in reader.read(task):
            found += zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True)
    return found


def proof(settings: Settings, name: str) -> TopicProof:
    (found,) = prove(settings, name, lambda _: lambda _: None)
    return found


def asked(face: Callable[[], Rows]) -> Rows | FrazilError:
    """What a face says: rows, or its refusal."""
    try:
        return face()
    except FrazilError as error:
        return error
