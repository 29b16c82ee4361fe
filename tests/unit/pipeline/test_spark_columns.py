"""Rows of a log in the columns of Spark's Kafka source."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from frazil.core.errors import InvalidInput
from frazil.core.rows import ENVELOPE, message_batch, stored_schema, with_offsets
from frazil.pipeline.source.columns import check_spark_can_tell_apart, projection, source_columns

ROWS = with_offsets(
    message_batch(
        [b"a", b"b", b"c", b"d"],
        [None, b"k", None, b"l"],
        [None, [("x", "1"), ("y", "2")], [], [("z", "3")]],
        [None] * 4,
        1_000_000,
    ),
    7,
)


def test_messages_have_the_columns_of_kafka() -> None:
    made = projection(source_columns(ENVELOPE), ENVELOPE, "/a/b").rows(ROWS, "/a/b", 3)
    assert made.column("key").to_pylist() == [None, b"k", None, b"l"]
    assert made.column("value").to_pylist() == [b"a", b"b", b"c", b"d"]
    assert made.column("offset").to_pylist() == [7, 8, 9, 10]
    assert set(made.column("topic").to_pylist()) == {"/a/b"}
    assert set(made.column("partition").to_pylist()) == {3}
    assert set(made.column("timestampType").to_pylist()) == {1}  # LogAppendTime
    assert {time.timestamp() for time in made.column("timestamp").to_pylist()} == {1.0}


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_attributes_are_headers_also_in_a_part_of_a_batch(cut: int) -> None:
    wanted = pa.schema([source_columns(ENVELOPE).field("headers")])
    made = projection(wanted, ENVELOPE, "/a/b").rows(ROWS.slice(cut), "/a/b", 0)
    assert (
        made.column("headers").to_pylist()
        == [
            None,
            [{"key": "x", "value": b"1"}, {"key": "y", "value": b"2"}],
            [],
            [{"key": "z", "value": b"3"}],
        ][cut:]
    )


def test_only_the_stored_columns_that_are_needed_are_read() -> None:
    wanted = pa.schema([("value", pa.binary()), ("offset", pa.int64())])
    assert projection(wanted, ENVELOPE, "/a/b").needed.names == ["_payload"]
    with pytest.raises(InvalidInput, match="/a/b has no column 'prize'; it has key, value"):
        projection(pa.schema([("prize", pa.int32())]), ENVELOPE, "/a/b")


def test_a_typed_topic_keeps_its_columns_and_those_that_clash_are_told_apart() -> None:
    stored = stored_schema(pa.schema([("offset", pa.string()), ("value", pa.int16()), ("timestamp", pa.int64())]))
    assert source_columns(stored).names == [
        "offset",
        "value",
        "timestamp",
        "topic",
        "partition",
        "_offset",
        "_timestamp",
    ]
    rows = pa.RecordBatch.from_pylist(
        [{"_append_time": 5, "offset": "o", "value": 4, "timestamp": 3}], stored
    )  # fmt: skip
    made = projection(source_columns(stored), stored, "/a/b").rows(with_offsets(rows, 9), "/a/b", 0)
    (row,) = made.to_pylist()
    assert (row["offset"], row["value"], row["timestamp"], row["_offset"]) == ("o", 4, 3, 9)
    assert made.column("_timestamp").cast(pa.int64()).to_pylist() == [5]


def test_columns_that_differ_only_in_case_from_those_that_are_added_are_told_apart_too() -> None:
    stored = stored_schema(pa.schema([("Offset", pa.string()), ("TOPIC", pa.int16()), ("Value", pa.int8())]))
    assert source_columns(stored).names == ["Offset", "TOPIC", "Value", "_topic", "partition", "_offset", "timestamp"]
    rows = pa.RecordBatch.from_pylist([{"_append_time": 5, "Offset": "o", "TOPIC": 4, "Value": 3}], stored)
    made = projection(source_columns(stored), stored, "/a/b").rows(with_offsets(rows, 9), "/a/b", 0)
    (row,) = made.to_pylist()
    assert (row["Offset"], row["TOPIC"], row["_topic"], row["_offset"]) == ("o", 4, "/a/b", 9)
    check_spark_can_tell_apart("/a/b", stored)


def test_own_columns_that_are_one_name_to_spark_are_refused_by_name() -> None:
    stored = stored_schema(pa.schema([("user", pa.string()), ("User", pa.string())]))
    with pytest.raises(InvalidInput, match="/a/b has columns 'user' and 'User', which are one name to Spark"):
        check_spark_can_tell_apart("/a/b", stored)


def test_numbers_that_spark_does_not_know_come_in_a_wider_type() -> None:
    own = pa.schema([("small", pa.uint8()), ("large", pa.list_(pa.uint64())), ("half", pa.float16())])
    stored = stored_schema(own)
    columns = source_columns(stored)
    assert [field.type for field in columns][:3] == [pa.int32(), pa.list_(pa.int64()), pa.float32()]
    from_arrow_schema(columns)
    row = {"_append_time": 5, "small": 255, "large": [2**63 - 1], "half": np.float16(1.5)}
    rows = with_offsets(pa.RecordBatch.from_pylist([row], stored), 9)
    (made,) = projection(columns, stored, "/a/b").rows(rows, "/a/b", 0).to_pylist()
    assert (made["small"], made["large"], made["half"]) == (255, [2**63 - 1], 1.5)
