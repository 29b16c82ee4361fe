"""Columns that writers add, and batches in the form of a schema that has changed: pure functions."""

from __future__ import annotations

import pyarrow as pa
import pytest

from frazil.core.errors import SchemaMismatch
from frazil.core.rows import upgraded
from frazil.core.rows.evolution import Fit, evolved, narrowed, plain_schema

OWN = pa.schema([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.string())])


def test_metadata_of_any_depth_is_left_out() -> None:
    marked = {b"frazil.telemetry": b"traces"}
    inner = pa.field("x", pa.list_(pa.field("item", pa.int32(), metadata=marked)), metadata=marked)
    given = pa.schema([pa.field("s", pa.struct([inner]), metadata=marked), pa.field("m", pa.map_(pa.string(), inner))])
    found = plain_schema(given.with_metadata(marked))
    assert found.equals(pa.schema([pa.field("s", pa.struct([("x", pa.list_(pa.int32()))])), found.field("m")]))
    assert b"frazil" not in found.serialize().to_pybytes()


def test_what_fits_already_is_the_same_object() -> None:
    assert evolved(OWN, pa.schema([("a", pa.int32())])) is OWN
    assert evolved(OWN, pa.schema([("a", pa.int16())])) is OWN
    wider = evolved(OWN, pa.schema([pa.field("a", pa.int64()), pa.field("c", pa.int8(), nullable=False)]))
    assert wider == pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.string()), ("c", pa.int8())])


@pytest.mark.parametrize("kind", [pa.uint8(), pa.float64(), pa.string(), pa.list_(pa.int32()), pa.bool_()])
def test_other_types_are_refused_by_name(kind: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch, match="column 'a' has type") as refused:
        evolved(OWN, pa.schema([("a", kind)]))
    assert refused.value.fields["field"] == "a"


def test_batches_take_the_form_of_the_topic() -> None:
    batch = pa.RecordBatch.from_pydict({"b": ["x", None]}, schema=pa.schema([("b", pa.string())]))
    own = pa.schema([("a", pa.int64()), ("b", pa.large_string()), ("c", pa.int64())])
    fit = Fit(batch.schema, own)
    assert fit.needs_cast
    rows = fit.rows(batch)
    assert rows.schema.equals(own)
    assert rows.to_pydict() == {"a": [None, None], "b": ["x", None], "c": [None, None]}
    assert not Fit(own, own).needs_cast


def test_many_columns_of_nulls_take_the_memory_of_one() -> None:
    before, count = pa.total_allocated_bytes(), 100_000
    batch = pa.RecordBatch.from_arrays([pa.nulls(count, pa.bool_())], names=["flag"])
    own = pa.schema([("flag", pa.bool_()), *((f"c{number}", pa.int64()) for number in range(500))])
    kept = [Fit(batch.schema, own).rows(batch), upgraded(batch, own)]
    assert pa.total_allocated_bytes() - before < 10 * count * 8
    assert all(rows.num_columns == 501 for rows in kept)


def test_rows_are_narrowed_only_if_nothing_is_lost() -> None:
    def rows(**columns: pa.Array) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict(columns)

    earlier = pa.schema([("a", pa.int32())])
    fits = narrowed(rows(a=pa.array([1, None], pa.int64()), c=pa.nulls(2, pa.string())), earlier)
    assert fits is not None
    assert fits.equals(rows(a=pa.array([1, None], pa.int32())))
    assert narrowed(rows(a=pa.array([2**40], pa.int64())), earlier) is None
    assert narrowed(rows(a=pa.array([1], pa.int64()), c=pa.array(["x"])), earlier) is None
    assert narrowed(rows(f=pa.array([0.1], pa.float64())), pa.schema([("f", pa.float32())])) is None
