"""Topics with their own columns, and how these may change."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import frazil

SCHEMA = pa.schema([pa.field("id", pa.int32(), nullable=False), pa.field("name", pa.string())])


def rows(*pairs: tuple[int, str | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"id": number, "name": name} for number, name in pairs], schema=SCHEMA)


def test_rows_come_back_with_offsets_and_times(tmp_path: Path) -> None:
    with frazil.open(tmp_path) as storage:
        topic = storage.topic("/default/typed", schema=SCHEMA)
        assert topic.publish_many(rows((1, "a"), (2, None))) == frazil.OffsetRange(0, 2)
        topic.publish_many(rows((3, "c")))
    with frazil.open(tmp_path) as storage:
        topic = storage.topic("/default/typed")
        assert topic.schema == SCHEMA
        table = pa.Table.from_batches(topic.read_batches())
    assert table.column_names == ["_offset", "_append_time", "id", "name"]
    assert table.select(["_offset", "id", "name"]).to_pylist() == [
        {"_offset": 0, "id": 1, "name": "a"},
        {"_offset": 1, "id": 2, "name": None},
        {"_offset": 2, "id": 3, "name": "c"},
    ]


def test_columns_may_come_in_any_order_but_not_with_other_types(tmp_path: Path) -> None:
    with frazil.open(tmp_path) as storage:
        topic = storage.topic("/default/typed", schema=SCHEMA)
        topic.publish_many(rows((1, "a")).select(["name", "id"]))
        for bad in (
            rows((1, "a")).select(["id"]),
            pa.record_batch({"id": pa.array([1], pa.int64()), "name": ["a"]}),
            pa.record_batch({"id": pa.array([1], pa.int32()), "name": ["a"], "more": [1]}),
            pa.record_batch({"id": pa.array([None], pa.int32()), "name": ["a"]}),
        ):
            with pytest.raises(frazil.SchemaMismatch):
                topic.publish_many(bad)
        assert topic.stats().end == 1


def test_messages_do_not_go_into_a_typed_topic(tmp_path: Path) -> None:
    with frazil.open(tmp_path) as storage:
        topic = storage.topic("/default/typed", schema=SCHEMA)
        for call in (lambda: topic.publish(b"x"), lambda: topic.publish_many([b"x"]), topic.read):
            with pytest.raises(frazil.SchemaMismatch, match="typed"):
                call()


@pytest.mark.parametrize(
    "field",
    [
        pa.field("_mine", pa.int32()),
        pa.field("", pa.int32()),
        pa.field("d", pa.dictionary(pa.int8(), pa.string())),
        pa.field("u", pa.dense_union([pa.field("a", pa.int8())])),
        pa.field("r", pa.run_end_encoded(pa.int16(), pa.string())),
        pa.field("l", pa.list_(pa.dictionary(pa.int8(), pa.string()))),
    ],
)
def test_a_schema_that_cannot_be_stored_is_refused_by_column(tmp_path: Path, field: pa.Field) -> None:
    with frazil.open(tmp_path) as storage:
        with pytest.raises(frazil.SchemaMismatch) as caught:
            storage.create_topic("/default/typed", schema=pa.schema([field]))
        assert caught.value.field.startswith(field.name)
        assert storage.topics() == []


def test_a_changed_schema_starts_a_segment_and_old_rows_are_read_in_the_new_form(tmp_path: Path) -> None:
    wider = pa.schema([pa.field("extra", pa.float64()), pa.field("name", pa.string()), pa.field("id", pa.int64())])
    with frazil.open(tmp_path) as storage:
        topic = storage.topic("/default/typed", schema=SCHEMA)
        topic.publish_many(rows((1, "a")))
        storage.change_schema("/default/typed", wider)
        topic.publish_many(pa.RecordBatch.from_pylist([{"extra": 0.5, "id": 2**40, "name": "b"}], schema=wider))
        assert len(topic.log.segments) == 2
    with frazil.open(tmp_path) as storage:
        table = pa.Table.from_batches(storage.topic("/default/typed").read_batches())
    assert table.select(["_offset", "extra", "name", "id"]).to_pylist() == [
        {"_offset": 0, "extra": None, "name": "a", "id": 1},
        {"_offset": 1, "extra": 0.5, "name": "b", "id": 2**40},
    ]


@pytest.mark.parametrize(
    "changed",
    [
        pa.schema([pa.field("id", pa.int32())]),
        pa.schema([pa.field("id", pa.int16()), pa.field("name", pa.string())]),
        pa.schema([pa.field("id", pa.string()), pa.field("name", pa.string())]),
        pa.schema([pa.field("id", pa.int32()), pa.field("name", pa.string(), nullable=False)]),
        pa.schema([*SCHEMA, pa.field("must", pa.int8(), nullable=False)]),
    ],
)
def test_a_change_that_would_strand_stored_rows_is_refused(tmp_path: Path, changed: pa.Schema) -> None:
    with frazil.open(tmp_path) as storage:
        topic = storage.topic("/default/typed", schema=SCHEMA)
        with pytest.raises(frazil.SchemaMismatch):
            storage.change_schema("/default/typed", changed)
        assert topic.schema == SCHEMA


def test_asking_for_another_schema_than_the_topic_has_is_refused(tmp_path: Path) -> None:
    with frazil.open(tmp_path) as storage:
        storage.topic("/default/messages")
        storage.topic("/default/typed", schema=SCHEMA)
        assert storage.topic("/default/typed", schema=SCHEMA).schema == SCHEMA
        for name in ("/default/messages", "/default/typed"):
            with pytest.raises(frazil.SchemaMismatch):
                storage.topic(name, schema=pa.schema([("other", pa.int8())]))
