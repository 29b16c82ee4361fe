"""Spark itself reads the same rows: its SQL with Iceberg's own runtime, and `spark.read.format("frazil")`.

One session serves all histories. Spark also is the other engine that compacts, deletes and expires.
"""

from __future__ import annotations

import uuid

import pyarrow as pa
import pytest
from agreement import check, in_source
from each_reader import Readers, rows_of
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from random_columns import Table, tables
from topic_history import LOG_STEPS, LOSING_STEPS, TABLE_STEPS, History, history_of

from frazil.pipeline.source.source import register
from parts.spark_iceberg import iceberg_options

SPARK_STEPS = {
    "spark compacts": "CALL {catalog}.system.rewrite_data_files(table => 'shop.orders',"
    " options => map('rewrite-all', 'true'))",
    "spark deletes": "DELETE FROM {catalog}.shop.orders WHERE `{offset}` = 1",
    "spark adds a column": "ALTER TABLE {catalog}.shop.orders ADD COLUMN `added by spark {number}` struct<a: string>",
    "spark expires": "CALL {catalog}.system.expire_snapshots(table => 'shop.orders',"
    " older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)",
}
MERGE_ON_READ = "ALTER TABLE {catalog}.shop.orders SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')"

HERE_STEPS = [step for step in (*LOG_STEPS, *TABLE_STEPS, *LOSING_STEPS) if step != "forget"]
"""Iceberg's own library never forgets the schema of the current snapshot, and can't read a table without it."""
STEPS = st.lists(st.sampled_from([*HERE_STEPS, *SPARK_STEPS, *SPARK_STEPS]), min_size=3, max_size=6)


class SparkEngine:
    def __init__(self, session: SparkSession, history: History) -> None:
        self._session = session
        self._of = history
        self._catalog = history.settings.catalog.name
        for name, value in iceberg_options(history.settings).items():
            session.conf.set(name, value)

    def sql(self, text: str) -> pa.Table:
        table = self._of.table()
        assert table is not None
        offset = self._of.column(table, "_offset")
        filled = text.format(catalog=self._catalog, offset=offset, number=uuid.uuid4().hex[:6])
        return self._session.sql(filled).toArrow()

    def check(self) -> None:
        """What all others agreed on, Spark has as well."""
        asked, readers = check(self._of), Readers(self._of)
        if asked is None:
            return
        table = self._of.table()
        if readers.held() and table is not None:
            found = self.sql("SELECT * FROM {catalog}.shop.orders")
            names = [self._of.ids.get(field.field_id, str(field.field_id)) for field in table.schema().fields]
            assert readers.counted(rows_of(found.rename_columns(names))) == readers.pyiceberg()
        schema = readers.spark_schema()
        if schema is not None:
            read = self._session.read.format("frazil").options(**readers.source_options()).load().toArrow()
            found_by_source = readers.from_source([read])
            assert found_by_source == readers.spark_batch(schema)
            assert in_source(asked, asked).items() <= found_by_source.items()


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """In which names that differ in case alone are two, as they are to Iceberg."""
    register(spark)
    spark.conf.set("spark.sql.caseSensitive", "true")
    return spark


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Delete operation did not match any records")
@pytest.mark.filterwarnings("ignore:Merge on read is not yet supported")  # by PyIceberg
@pytest.mark.timeout(3_600)
@settings(
    max_examples=max(1, settings().max_examples // 80),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)
@given(kind=tables(), steps=STEPS, merge_on_read=st.booleans(), data=st.data())
def test_spark_has_the_rows_that_all_readers_have(
    session: SparkSession, kind: Table, steps: list[str], merge_on_read: bool, data: st.DataObject
) -> None:
    with history_of(kind, "data", f"c{uuid.uuid4().hex}") as history:
        engine = SparkEngine(session, history)
        for step in ["publish", "move", *(["merge on read"] if merge_on_read else []), *steps]:
            if step == "merge on read":
                engine.sql(MERGE_ON_READ)
            elif step in SPARK_STEPS:
                engine.sql(SPARK_STEPS[step])
            else:
                history.do(step, data)
            engine.check()
