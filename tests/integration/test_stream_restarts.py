"""A stream goes on from its checkpoint whatever was done to log and table meanwhile: each offset once, in every batch.

A batch that was planned and not done is in the checkpoint; after all of it, Spark asks for that batch again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import frazil
from parts.moving import Floor, HandMover, open_guarded
from parts.processes import pause
from parts.table_rewrites import expire, remove_unneeded_files, rewrite

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.timeout(180),
]

TOPIC = "/shop/sales"
FIRST = pa.schema([pa.field("number", pa.int64(), nullable=False), pa.field("name", pa.string())])
SECOND = pa.schema([pa.field("number", pa.int64()), pa.field("name", pa.string()), pa.field("note", pa.string())])
EACH = 70
"""Rows of a batch: no multiple of what is published, moved or kept in a file."""


class Sales:
    """A typed topic over its tiers, and what a stream of it got in each batch."""

    def __init__(self, folder: Path, storage: frazil.Storage, floor: Floor, session: SparkSession) -> None:
        self.folder = folder
        self.storage = storage
        self.session = session
        self.topic = storage.topic(TOPIC, schema=FIRST)
        self.mover = HandMover(frazil.Settings(data=folder / "data"))
        self.floor = floor
        self.batches: dict[int, list[tuple[Any, ...]]] = {}
        self.schema = FIRST

    def publish(self, count: int) -> None:
        """Where the number may be null, every third one is."""
        end = self.topic.stats().end
        for start in range(end, end + count, 50):
            rows = [self.row(number) for number in range(start, start + 50)]
            self.topic.publish_many(pa.RecordBatch.from_pylist(rows, self.schema))

    def row(self, number: int) -> dict[str, Any]:
        if self.schema is FIRST:
            return {"number": number, "name": f"n{number}".ljust(200)}
        return {"number": number if number % 3 else None, "name": "x" * 200, "note": f"note {number}"}

    def change_schema(self) -> None:
        self.schema = SECOND
        self.topic = self.storage.change_schema(TOPIC, SECOND)

    def compact(self) -> None:
        """In another order and other files, and all that was before is gone."""
        rewrite(self.mover.table(self.topic), "_offset >= 0", seed=7, cuts=3)
        expire(self.mover.table(self.topic), 1)
        assert remove_unneeded_files(self.mover.table(self.topic)) > 0

    def empty_the_log(self) -> None:
        end = self.mover.move(self.topic)
        self.floor.ends[self.topic.log.log_id] = end
        self.storage.set_retention(TOPIC, frazil.RetentionSettings(age_ms=1))
        for _ in range(500):
            self.storage.maintain()
            if self.topic.log.first_offset == end:
                return
            pause(0.02)
        raise AssertionError("retention has not emptied the log")

    def stream(self, columns: str = "number", *, fails: bool = False, **options: str) -> None:
        """Run until nothing is left, or until the first batch fails: that one is planned, and not done."""
        query = self.start(columns, fails=fails, **options)
        try:
            query.processAllAvailable()
        except Exception:
            if not fails:
                raise
        finally:
            query.stop()

    def start(self, columns: str = "number", *, fails: bool = False, **options: str) -> Any:
        given = {"subscribe": TOPIC, "data": str(self.folder / "data"), "maxOffsetsPerTrigger": str(EACH), **options}
        names = ["offset", *columns.split()]

        def take(frame: DataFrame, batch_id: int) -> None:
            rows = [tuple(row[name] for name in names) for row in frame.collect()]
            assert batch_id not in self.batches
            if fails:
                raise ValueError("the sink is away")
            self.batches[batch_id] = sorted(rows)

        frame = self.session.readStream.format("frazil").options(**given).load().select(*names)
        return frame.writeStream.foreachBatch(take).option("checkpointLocation", str(self.folder / "at")).start()

    def rows(self) -> list[tuple[Any, ...]]:
        return [row for _, rows in sorted(self.batches.items()) for row in rows]


@pytest.fixture
def sales(tmp_path: Path, session: SparkSession) -> Iterator[Sales]:
    wal = frazil.WalSettings(max_file_size=64 * 1024, max_file_age_ms=1)
    floor = Floor()
    with open_guarded(frazil.Settings(data=tmp_path / "data", wal=wal), floor) as storage:
        yield Sales(tmp_path, storage, floor, session)


def test_a_batch_that_was_not_done_is_the_same_after_compaction_retention_and_another_schema(sales: Sales) -> None:
    sales.publish(100)
    sales.mover.move(sales.topic, 60)
    sales.stream()
    sales.publish(50)
    sales.stream(fails=True)
    sales.change_schema()
    sales.publish(50)
    sales.empty_the_log()
    sales.compact()
    sales.stream()
    assert sales.rows() == [(offset, offset if offset < 150 or offset % 3 else None) for offset in range(200)]
    assert [len(rows) for _, rows in sorted(sales.batches.items())] == [EACH, 30, 50, 50]


@pytest.mark.long
def test_a_stream_goes_on_across_compaction_retention_and_another_schema(sales: Sales) -> None:
    sales.publish(200)
    sales.mover.move(sales.topic, 120, files=2)
    sales.stream()
    assert sales.rows() == [(offset, offset) for offset in range(200)]
    sales.publish(200)
    sales.empty_the_log()
    sales.stream(fails=True)
    sales.compact()
    sales.stream()
    assert sales.rows() == [(offset, offset) for offset in range(400)]
    sales.publish(100)
    sales.stream(fails=True)
    sales.change_schema()
    sales.publish(200)
    sales.empty_the_log()
    sales.compact()
    sales.stream()
    expected = [(offset, offset if offset < 500 or offset % 3 else None) for offset in range(700)]
    assert sales.rows() == expected
    sales.publish(50)
    sales.stream("number note")
    assert sales.rows()[700:] == [
        (offset, offset if offset % 3 else None, f"note {offset}") for offset in range(700, 750)
    ]
    assert all(len(rows) <= EACH for rows in sales.batches.values())


def test_a_running_stream_of_a_required_column_gets_null_as_null(sales: Sales) -> None:
    """The columns of a running query stay as they were when it began."""
    sales.publish(100)
    query = sales.start("number")
    try:
        query.processAllAvailable()
        sales.change_schema()
        sales.publish(100)
        query.processAllAvailable()
        sales.publish(100)
        sales.empty_the_log()
        sales.compact()
        query.processAllAvailable()
    finally:
        query.stop()
    assert sales.rows() == [(offset, offset if offset < 100 or offset % 3 else None) for offset in range(300)]
