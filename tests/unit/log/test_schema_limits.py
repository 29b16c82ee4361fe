"""What can't be read back is refused before anything of it is written."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import frazil
from frazil import SchemaMismatch
from frazil.core.rows import SCHEMA_COLUMNS_MAX, SCHEMA_DEPTH_MAX

TOPIC = "/t/deep"


def nested(levels: int, kind: str) -> pa.DataType:
    """A type of so many levels."""
    made = pa.int64()
    for _ in range((levels - 1) // (2 if kind == "map" else 1)):
        made = {"list": pa.list_(made), "struct": pa.struct([("in", made)]), "map": pa.map_(pa.string(), made)}[kind]
    return made


def schema(levels: int, kind: str) -> pa.Schema:
    return pa.schema([pa.field("id", pa.int64()), pa.field("deep", nested(levels, kind))])


@pytest.mark.parametrize("kind", ["list", "struct", "map"])
@pytest.mark.parametrize("levels", [SCHEMA_DEPTH_MAX + 2, 64, 65, 200, 5_000])
def test_a_schema_that_is_nested_too_deep_is_refused_and_leaves_no_topic(
    tmp_path: Path, levels: int, kind: str
) -> None:
    with frazil.open(tmp_path) as storage:
        with pytest.raises(SchemaMismatch, match=r"'deep'.*50 levels") as caught:
            storage.create_topic(TOPIC, schema=schema(levels, kind))
        assert (caught.value.field, caught.value.limit) == ("deep", SCHEMA_DEPTH_MAX)
        assert storage.topics() == []
    assert not (tmp_path / "log/t").exists()


@pytest.mark.parametrize("kind", ["list", "struct", "map"])
def test_the_deepest_schema_that_is_taken_can_be_published_to_and_read_after_a_restart(
    tmp_path: Path, kind: str
) -> None:
    deep = schema(SCHEMA_DEPTH_MAX, kind)
    with frazil.open(tmp_path) as storage:
        batch = pa.record_batch([pa.array([7]), pa.nulls(1, deep.field("deep").type)], schema=deep)
        storage.create_topic(TOPIC, schema=deep).publish_many(batch)
    with frazil.open(tmp_path) as storage:
        topic = storage.topic(TOPIC)
        assert topic.schema is not None
        assert topic.schema.equals(deep)
        (found,) = topic.read_batches("earliest")
        assert found.column("id").to_pylist() == [7]


def test_a_change_to_a_schema_that_cannot_be_read_back_leaves_the_topic_as_it_was(tmp_path: Path) -> None:
    before = pa.schema([pa.field("id", pa.int64())])
    with frazil.open(tmp_path) as storage:
        storage.create_topic(TOPIC, schema=before)
        with pytest.raises(SchemaMismatch, match="50 levels"):
            storage.change_schema(TOPIC, schema(200, "list"))
    with frazil.open(tmp_path) as storage:
        assert storage.topic(TOPIC).schema == before


def test_too_many_columns_and_too_long_names_are_refused_with_the_limit(tmp_path: Path) -> None:
    many = pa.schema([pa.field(f"c{number}", pa.int8()) for number in range(SCHEMA_COLUMNS_MAX + 1)])
    long = pa.schema([pa.field("n" * 800_000, pa.int8())])
    with frazil.open(tmp_path) as storage:
        with pytest.raises(SchemaMismatch, match=r"10001 columns.*10000"):
            storage.create_topic(TOPIC, schema=many)
        with pytest.raises(SchemaMismatch, match="bytes in Arrow's form, more than 786432"):
            storage.create_topic(TOPIC, schema=long)
        assert storage.topics() == []
