"""Values that one of the doors could not pass on are refused when they are published."""

from __future__ import annotations

import pyarrow as pa
import pytest

import frazil

PAYLOAD = pa.array([b"a", b"odd"], pa.binary())
ODD = {
    "_schema_id": pa.array([1, -1], pa.int64()),
    "_schema_version": pa.array([None, -1], pa.int32()),
    "_attributes": pa.array([None, [("k", None)]], pa.map_(pa.string(), pa.string())),
}


@pytest.mark.parametrize("name", ODD)
def test_what_a_door_cannot_pass_on_is_refused_with_its_field(name: str) -> None:
    with frazil.open(None) as storage:
        topic = storage.topic("/default/orders")
        batch = pa.RecordBatch.from_arrays([PAYLOAD, ODD[name]], names=["_payload", name])
        with pytest.raises(frazil.InvalidInput, match=name):
            topic.publish_many(batch)
        assert topic.stats().end == 0
        topic.publish_many(batch.slice(0, 1))
