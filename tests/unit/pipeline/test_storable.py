"""What a topic takes can be moved: other types are refused when it is made, other values when they are published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import frazil
from frazil.core.names import TopicName
from frazil.core.settings import Settings, make_settings
from frazil.lake.read.history import TableHistories
from parts.in_process import MoverHere

TOPIC = "/types/one"
LEAST_US, GREATEST_US = -62_135_596_800_000_000, 253_402_300_799_999_999


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings({"data": tmp_path / "data"})


def viewed(value: int, kind: pa.DataType) -> pa.Array:
    return pa.array([value], pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)


TAKEN = {
    "bool": pa.array([True]),
    "int8": pa.array([-128], pa.int8()),
    "uint8": pa.array([255], pa.uint8()),
    "uint16": pa.array([65_535], pa.uint16()),
    "uint32": pa.array([2**32 - 1], pa.uint32()),
    "uint64": pa.array([2**63 - 1], pa.uint64()),
    "half": pa.array([1.5], pa.float16()),
    "double": pa.array([float("inf")]),
    "time": viewed(86_399_999_999, pa.time64("us")),
    "timestamp_s": viewed(253_402_300_799, pa.timestamp("s")),
    "timestamp_ms": viewed(-62_135_596_800_000, pa.timestamp("ms", tz="Z")),
    "timestamp_first": viewed(LEAST_US, pa.timestamp("us")),
    "timestamp_last": viewed(GREATEST_US, pa.timestamp("us", tz="+00:00")),
    "date_first": viewed(-719_162, pa.date32()),
    "date_last": viewed(2_932_896, pa.date32()),
    "fixed": pa.array([b"abcd"], pa.binary(4)),
    "large_string": pa.array(["tea"], pa.large_string()),
    "large_binary": pa.array([b"tea"], pa.large_binary()),
    "decimal": pa.array([None], pa.decimal128(38, 38)),
    "list": pa.array([[1, None]], pa.list_(pa.uint32())),
    "large_list": pa.array([["tea"]], pa.large_list(pa.large_string())),
    "map": pa.array([[("a", 1), ("b", None)]], pa.map_(pa.string(), pa.uint64())),
    "struct": pa.array([{"a": [{"b": 5}]}], pa.struct([("a", pa.list_(pa.struct([("b", pa.uint16())])))])),
    "required_within_null": pa.array([None], pa.struct([pa.field("a", pa.int64(), nullable=False)])),
    "hidden": pa.StructArray.from_arrays([pa.array([2**63], pa.uint64())], names=["a"], mask=pa.array([True])),
}


def test_every_type_that_is_taken_is_moved_and_read_back_as_it_was(settings: Settings) -> None:
    histories = TableHistories(settings)
    with frazil.open(settings) as storage:
        for name, column in TAKEN.items():
            schema = pa.schema([("it", column.type)])
            storage.create_topic(f"/types/{name}", schema=schema)
            storage.topic(f"/types/{name}").publish_many(pa.record_batch([column], schema=schema))
        errors = MoverHere(settings, storage).errors()
        assert [error for error in errors.values() if error is not None] == []
        for name, column in TAKEN.items():
            log = storage.topic(f"/types/{name}").log
            history = histories.of(TopicName.parse(f"/types/{name}"), log.log_id)
            assert history is not None
            found = next(history.read(0, 1, log.schema)).column("it")
            assert found.equals(column), name
    unsigned = [
        (path.parent.parent.name, str(pq.ParquetFile(path).schema))
        for path in (settings.data or Path()).rglob("*.parquet")
        if "isSigned=false" in str(pq.ParquetFile(path).schema)
    ]
    assert unsigned == []  # Iceberg's own readers refuse them


REFUSED = {
    "null": pa.null(),
    "duration": pa.duration("us"),
    "interval": pa.month_day_nano_interval(),
    "nanoseconds": pa.timestamp("ns"),
    "zone": pa.timestamp("us", tz="Europe/Berlin"),
    "time32": pa.time32("ms"),
    "time_ns": pa.time64("ns"),
    "date64": pa.date64(),
    "decimal32": pa.decimal32(5, 2),
    "decimal64": pa.decimal64(10, 2),
    "decimal256": pa.decimal256(60, 3),
    "negative_scale": pa.decimal128(38, -3),
    "scale_above_precision": pa.decimal128(5, 7),
    "fixed_list": pa.list_(pa.int32(), 2),
    "list_view": pa.list_view(pa.int32()),
    "large_list_view": pa.large_list_view(pa.int32()),
    "string_view": pa.string_view(),
    "binary_view": pa.binary_view(),
    "empty_struct": pa.struct([]),
    "nameless_field": pa.struct([("", pa.int32())]),
    "twin_fields": pa.struct([("a", pa.int32()), ("a", pa.int64())]),
    "no_bytes": pa.binary(0),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("within", [lambda kind: kind, lambda kind: pa.list_(pa.struct([("a", kind)]))])
def test_a_type_that_no_table_has_is_refused_when_a_topic_is_made_or_changed(name: str, within: Any) -> None:
    kind, good = within(REFUSED[name]), pa.field("good", pa.int64())
    with frazil.open(None) as storage:
        with pytest.raises(frazil.SchemaMismatch, match=r"column '?it"):
            storage.create_topic(TOPIC, schema=pa.schema([good, ("it", kind)]))
        assert list(storage.topics()) == []
        storage.create_topic(TOPIC, schema=pa.schema([good]))
        with pytest.raises(frazil.SchemaMismatch, match=r"column '?it"):
            storage.change_schema(TOPIC, pa.schema([good, ("it", kind)]))
        assert storage.topic(TOPIC).schema == pa.schema([good])


def test_two_columns_that_iceberg_gives_one_name_are_refused() -> None:
    schema = pa.schema([("a.b", pa.int64()), ("a", pa.struct([("b", pa.int64())]))])
    with frazil.open(None) as storage, pytest.raises(frazil.SchemaMismatch, match=r"'a\.b'"):
        storage.create_topic(TOPIC, schema=schema)


U64, REQUIRED = pa.uint64(), pa.field("a", pa.int64(), nullable=False)
UNSTORABLE = {
    "uint64": pa.array([0, 1, 2**63], U64),
    "timestamp": pa.array([0, None, GREATEST_US + 1], pa.int64()).view(pa.timestamp("us")),
    "timestamp_before": pa.array([0, 0, LEAST_US - 1], pa.int64()).view(pa.timestamp("us", tz="UTC")),
    "timestamp_s": pa.array([0, 0, 2**60], pa.int64()).view(pa.timestamp("s")),
    "date": pa.array([0, 0, 2_932_897], pa.int32()).view(pa.date32()),
    "in_list": pa.array([[1], [], [2, 2**63]], pa.list_(U64)),
    "in_map": pa.array([[("a", 1)], None, [("b", 2**63)]], pa.map_(pa.string(), U64)),
    "in_map_key": pa.array([[], None, [(2**63, 1)]], pa.map_(U64, pa.int8())),
    "in_struct": pa.array([{"a": 1}, None, {"a": 2**63}], pa.struct([("a", U64)])),
    "in_struct_in_list": pa.array([[{"a": 1}], None, [{"a": 1}, {"a": 2**63}]], pa.list_(pa.struct([("a", U64)]))),
    "null_in_struct": pa.array([{"a": 1}, None, {"a": None}], pa.struct([REQUIRED])),
    "null_in_list": pa.array([[1], None, [None]], pa.list_(REQUIRED.with_name("item"))),
}


@pytest.mark.parametrize("name", UNSTORABLE)
def test_a_value_that_no_table_holds_is_refused_with_its_column_and_row(name: str) -> None:
    column = UNSTORABLE[name]
    schema = pa.schema([("good", pa.int64()), ("it", column.type)])
    batch = pa.record_batch([pa.array([1, 2, 3]), column], schema=schema)
    with frazil.open(None) as storage:
        topic = storage.create_topic(TOPIC, schema=schema)
        with pytest.raises(frazil.ValueNotStorable, match=r"column 'it', row 2") as refused:
            topic.publish_many(batch)
        assert (refused.value.field, refused.value.row, topic.stats().end) == ("it", 2, 0)
        with pytest.raises(frazil.ValueNotStorable, match=r"row 0"):
            topic.publish_many(batch.slice(2))
        topic.publish_many(batch.slice(0, 2))
        assert topic.stats().end == 2


def test_a_row_from_before_such_values_were_refused_is_named_by_its_offset(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.schema([("it", U64)])
    with frazil.open(settings) as storage:
        topic = storage.create_topic(TOPIC, schema=schema)
        with monkeypatch.context() as before:
            before.setattr("frazil.log.write.publishing.check_values", lambda _: None)
            topic.publish_many(pa.record_batch([[1, 2**63]], schema=schema))
        errors = MoverHere(settings, storage).errors()
    assert "column 'it' of /types/one at offset 1" in str(errors[TOPIC])


@pytest.mark.parametrize("way", ["truncate[2](it)", "bucket[4](it)", "it"])
@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.uint8()])
def test_a_table_may_be_partitioned_by_short_numbers(tmp_path: Path, kind: pa.DataType, way: str) -> None:
    settings = make_settings({"data": tmp_path / "data", "topics": {TOPIC: {"partitioning": [way]}}})
    schema = pa.schema([("it", kind)])
    with frazil.open(settings) as storage:
        storage.create_topic(TOPIC, schema=schema)
        storage.topic(TOPIC).publish_many(pa.record_batch([pa.array([1, 5, None], kind)], schema=schema))
        here = MoverHere(settings, storage)
        assert here.errors() == {TOPIC: None}
        assert here.rows(TOPIC, "it") == [{"it": 1}, {"it": 5}, {"it": None}]
