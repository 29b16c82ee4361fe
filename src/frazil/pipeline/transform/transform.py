"""A topic's statement: Spark runs it over the rows that are due, and its result is written and committed.

Tasks read the rows, as they would for the table, and expose them as the view `topic`. The result uses the same file
writer, and the driver commits it with the same token: its range of offsets. An error of a statement is its topic's own.
Only the DataFrame API is used, so it also runs over Spark Connect.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import re
import uuid
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from frazil.core.errors import InvalidSettings
from frazil.core.offsets import OffsetRange
from frazil.lake.catalogs.error_text import LENGTH_MAX, masked, reason
from frazil.lake.files.writer import DataFile, DataFileWriter, TableFiles, pieces
from frazil.lake.tables.schema import table_columns, table_rows
from frazil.pipeline.move.outputs import Target, Written
from frazil.pipeline.move.tasks import LogRange, RangeOutput
from frazil.pipeline.transform.statement import Statement

READ_BYTES_MAX = 4 * 1024 * 1024
"""Rows are sent to the JVM in batches of this size, whatever the frames are."""

_RAISED = re.compile(r"^[\w.]+: .+$", re.MULTILINE)
_PLACE = re.compile(r"[;,]? *\(?line \d+,? pos(?:ition)? \d+\)?;?$")


def prepare(session: SparkSession, batch_bytes_max: int) -> None:
    """Statements see times in UTC wherever they run, and Spark returns their result in small batches."""
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(batch_bytes_max))
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # they print rows; we report each error ourselves


def result_columns(session: SparkSession, statement: Statement, stored: pa.Schema) -> pa.Schema:
    """Return the columns of the result; raises `InvalidSettings` if Spark refuses it, or a table cannot hold it."""
    statement.check()
    rows = _rows(session, statement, [], stored)
    with _view(rows) as view:
        try:
            found = session.sql(statement.query(view)).schema
        except AnalysisException as error:
            raise InvalidSettings(f"{statement.setting}: {_why(error)}") from None
    names = [field.name.lower() for field in found]
    for field in found:
        if names.count(field.name.lower()) > 1:
            raise InvalidSettings(f"{statement.setting}: two columns are called {field.name}; rename one with AS")
    fields = []
    for field in found:
        try:
            kind = _storable(to_arrow_schema(type(found)([field])).field(0).type)
        except (PySparkException, ValueError):
            message = f"column {field.name} is {field.dataType.simpleString()}, which a table cannot hold; cast it"
            raise InvalidSettings(f"{statement.setting}: {message}") from None
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def run_statement(
    session: SparkSession,
    statement: Statement,
    tasks: Sequence[Sequence[LogRange]],
    stored: pa.Schema,
    columns: pa.Schema,
    target: Target,
    flush_bytes: int,
) -> RangeOutput:
    """Run one job: read, transform, write. Its errors are in the output; a dead Spark raises."""
    ranges = sorted((one.range for task in tasks for one in task), key=lambda each: each.start)
    whole, log_id = OffsetRange(ranges[0].start, ranges[-1].end), tasks[0][0].log_id
    rows = _rows(session, statement, tasks, stored)
    with _view(rows) as view:
        try:
            found = session.sql(statement.query(view))
            written = found.mapInArrow(_write_in_task(columns, target.files, flush_bytes), "output binary").collect()  # type: ignore[arg-type]
        except PySparkException as error:
            _raise_if_gone(session, error)
            why = _why(error, target.files)
            failed = f"{statement.setting}: failed on offsets {whole.start} up to {whole.end}: {why}"
            return RangeOutput(log_id, whole, error=failed)
    outputs: list[tuple[tuple[DataFile, ...], int]] = [pickle.loads(row.output) for row in written]  # noqa: S301
    files = tuple(file for each, _ in outputs for file in each)
    result = Written(target.table, files, sum(count for _, count in outputs), is_result=True)
    return RangeOutput(log_id, whole, (result,))


@contextlib.contextmanager
def _view(rows: DataFrame) -> Iterator[str]:
    """Create a temporary view with a unique name: topics cannot see each other's rows."""
    name = f"frazil_{uuid.uuid4().hex}"
    rows.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        rows.sparkSession.catalog.dropTempView(name)


def _rows(
    session: SparkSession, statement: Statement, tasks: Sequence[Sequence[LogRange]], stored: pa.Schema
) -> DataFrame:
    """Return the topic's rows in these ranges, with the columns that its table would have."""
    try:
        schema = from_arrow_schema(table_columns(stored))
    except PySparkException as error:
        raise InvalidSettings(f"{statement.setting}: Spark cannot read the topic's rows ({_why(error)})") from None
    ids = session.range(0, len(tasks), 1, max(1, len(tasks)))
    return ids.mapInArrow(_read_in_task(tasks, to_arrow_schema(schema)), schema)  # type: ignore[arg-type]


def _read_in_task(tasks: Sequence[Sequence[LogRange]], columns: pa.Schema) -> object:
    packed = [pickle.dumps(list(task)) for task in tasks]

    def read(ids: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in ids:
            for number in batch.column(0).to_pylist():
                ranges: list[LogRange] = pickle.loads(packed[number])  # noqa: S301 - made by our own driver
                for one in ranges:
                    for rows in one.rows():
                        for piece in pieces(table_rows(rows, one.partition), READ_BYTES_MAX):
                            yield piece.cast(columns)

    return read


def _write_in_task(columns: pa.Schema, table: TableFiles, flush_bytes: int) -> object:
    """The function for `mapInArrow`: a task's files and their rows are returned pickled, as one row
    if there are any."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = DataFileWriter(table, flush_bytes)
        for rows in batches:
            if rows.num_rows:
                writer.add(rows.cast(columns))
        files = writer.close()
        if files:
            output = pickle.dumps((files, writer.rows))
            yield pa.RecordBatch.from_arrays([pa.array([output], pa.binary())], names=["output"])

    return write


def _storable(kind: pa.DataType) -> pa.DataType:
    """Return the type for a table: no field is required, so that the next statement may leave it out."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _storable(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_storable(kind.key_type), _storable(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", _storable(kind.value_type)))
    if pa.types.is_int8(kind) or pa.types.is_int16(kind):
        return pa.int32()
    if pa.types.is_null(kind) or pa.types.is_duration(kind) or pa.types.is_interval(kind):
        raise ValueError(f"no column of a table is {kind}")
    return kind


def _raise_if_gone(session: SparkSession, error: PySparkException) -> None:
    """Distinguish a failed statement from a dead Spark by running an empty job."""
    try:
        session.range(1).collect()
    except Exception:  # noqa: BLE001 - whatever it is, Spark can't run a job, and the first error says why
        raise error from None


def _why(error: PySparkException, table: TableFiles | None = None) -> str:
    """Return Spark's reason on one line, without secrets and without positions in text that the user never saw."""
    known = table.io_properties if table is not None else {}
    raised = _RAISED.findall(str(error).partition("JVM stacktrace")[0]) if isinstance(error, PythonException) else []
    if raised:  # by our own code in a task: the last line of its traceback
        return masked(raised[-1], known)[:LENGTH_MAX]
    return _PLACE.sub("", reason(error, known).partition(": ")[2])
