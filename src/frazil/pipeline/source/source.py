"""Topics as a Spark source, for batch and streaming: `format("frazil")`.

Rows in a topic's table are read from the table, the rest from the log, each offset once. A stream's offsets are in
Spark's own checkpoint: how far each partition was read, which log it was, and where the stream began. Spark asks a
Python source for its latest offset without a start, so the reader keeps the end of the last planned batch; Spark passes
it again at a restart, before it asks for more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from frazil.core.clock import SystemClock
from frazil.core.errors import InvalidInput
from frazil.core.rows import ENVELOPE
from frazil.pipeline.source.columns import check_same_columns, check_spark_can_tell_apart, projection, source_columns
from frazil.pipeline.source.options import SourceOptions, parse_options
from frazil.pipeline.source.planning import Look, looking, stored_of
from frazil.pipeline.source.ranges import SourceRange
from frazil.pipeline.source.stream import Patience, StreamOffset, advanced, waiting
from frazil.pipeline.source.tasks import TaskSettings, forget_zip_importers, read_source

NAME = "frazil"


def register(spark: SparkSession) -> None:
    """Register `format("frazil")` in a session. It needs `frazil` where the session's Python workers run."""
    spark.dataSource.register(FrazilSource)


class FrazilSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        options = parse_options(dict(self.options))
        with looking(options, options.settings()) as look:
            columns = _columns(look)
        if not options.include_headers and columns.equals(source_columns(ENVELOPE)):
            columns = columns.remove(columns.get_field_index("headers"))
        forget_zip_importers()
        return from_arrow_schema(columns, prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> BatchSourceReader:
        options = parse_options(dict(self.options))
        if options.of_streams is not None:
            raise InvalidInput(f"option {options.of_streams}: it is for streams; a batch has endingOffsets")
        return BatchSourceReader(options, schema)

    def streamReader(self, schema: StructType) -> StreamSourceReader:  # noqa: N802 - Spark's name
        options = parse_options(dict(self.options))
        if options.of_batches is not None:
            raise InvalidInput(f"option {options.of_batches}: it is for batches; a stream has no end")
        return StreamSourceReader(options, schema)


class RangePartition(InputPartition):
    def __init__(self, one: SourceRange) -> None:
        super().__init__(one)


class _Reads:
    """Shared by both readers. They are sent to the tasks."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._settings = options.settings()
        self._work = TaskSettings(self._settings, to_arrow_schema(schema), options.fail_on_data_loss)

    def read(self, partition: RangePartition | None) -> Iterator[pa.RecordBatch]:
        return iter(()) if partition is None else read_source(self._work, partition.value)

    def _tasks(self, ranges: Sequence[SourceRange]) -> list[RangePartition]:
        forget_zip_importers()  # Spark plans in a worker too
        return [RangePartition(one) for one in ranges]

    def _checked(self, look: Look) -> None:
        for (topic, _), info in look.logs.items():
            projection(self._work.columns, stored_of(info), topic)


class BatchSourceReader(_Reads, DataSourceReader):  # type: ignore[misc]
    def partitions(self) -> list[RangePartition]:
        with looking(self._options, self._settings) as look:
            self._checked(look)
            return self._tasks(look.plan(look.starts(), look.ends()))


class StreamSourceReader(_Reads, DataSourceStreamReader):  # type: ignore[misc]
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._last: StreamOffset | None = None
        self._patience = Patience(options, SystemClock())

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The stream's start, kept in every offset, so that a repeated first batch begins there too."""
        return self._latest_planned().beginning().as_json()

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        last = self._latest_planned()
        with looking(self._options, self._settings) as look:
            self._checked(look)
            found = advanced(last, look, self._options)
            return (found if self._patience.is_over(waiting(last, look)) else last).as_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RangePartition]:
        first, last = StreamOffset.of_json(start), StreamOffset.of_json(end)
        self._last = last
        if first.ends == last.ends and first.logs == last.logs:
            return []
        with looking(self._options, self._settings) as look:
            self._checked(look)
            first, last = first.renumbered(look), last.renumbered(look)
            last.check_logs(look, self._options.fail_on_data_loss)
            return self._tasks(look.plan(last.starts_after(first), last.within(look)))

    def _latest_planned(self) -> StreamOffset:
        if self._last is None:
            with looking(self._options, self._settings) as look:
                starts = look.starts()
                logs = {key: info.log_id for key, info in look.logs.items()}
                self._last = StreamOffset(starts, starts, logs)
        return self._last


def _columns(look: Look) -> pa.Schema:
    topics = [(topic, stored_of(info)) for (topic, _), info in sorted(look.logs.items(), key=lambda each: each[0])]
    if not topics:
        return source_columns(ENVELOPE)  # nothing exists yet
    check_same_columns(topics)
    check_spark_can_tell_apart(*topics[0])
    return source_columns(topics[0][1])
