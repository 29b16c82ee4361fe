"""The checksum of rows: the same however they are cut, another as soon as anything in them is."""

from __future__ import annotations

import itertools
import random
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from frazil.lake.files.checksum import RowsChecksum, from_text, joined, to_text, value

SCHEMA = pa.schema(
    [
        ("_offset", pa.int64()),
        ("text", pa.string()),
        ("data", pa.binary()),
        ("flag", pa.bool_()),
        ("ratio", pa.float64()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("price", pa.decimal128(9, 2)),
        ("tags", pa.map_(pa.string(), pa.string())),
        ("items", pa.list_(pa.int32())),
        ("inner", pa.struct([("a", pa.int8()), ("b", pa.string())])),
    ]
)


def rows(count: int = 40, seed: int = 1) -> list[dict[str, Any]]:
    rng = random.Random(seed)

    def maybe(value: Any) -> Any:
        return None if rng.random() < 0.2 else value

    return [
        {
            "_offset": offset,
            "text": maybe("ü" * rng.randrange(5)),
            "data": maybe(rng.randbytes(rng.randrange(20))),
            "flag": maybe(rng.random() < 0.5),
            "ratio": maybe(rng.random()),
            "time": maybe(datetime.fromtimestamp(rng.randrange(10**9), timezone.utc)),
            "price": maybe(Decimal(rng.randrange(10**6)) / 100),
            "tags": maybe([(f"k{index}", "v" * index) for index in range(rng.randrange(4))]),
            "items": maybe([rng.randrange(100) for _ in range(rng.randrange(4))]),
            "inner": maybe({"a": rng.randrange(100), "b": maybe("x")}),
        }
        for offset in range(count)
    ]


def checksum(batches: list[pa.RecordBatch]) -> int:
    found = RowsChecksum()
    for batch in batches:
        found.add(batch)
    return found.value()


def test_cuts_do_not_matter() -> None:
    whole = pa.RecordBatch.from_pylist(rows(), schema=SCHEMA)
    expected = checksum([whole])
    rng = random.Random(2)
    for _ in range(20):
        cuts = sorted(rng.sample(range(1, 40), rng.randrange(1, 8)))
        bounds = [0, *cuts, 40]
        pieces = [whole.slice(low, high - low) for low, high in itertools.pairwise(bounds)]
        assert checksum(pieces) == expected
        copies = [pa.RecordBatch.from_pylist(piece.to_pylist(), schema=SCHEMA) for piece in pieces]
        assert checksum(copies) == expected


@pytest.mark.parametrize("column", SCHEMA.names)
def test_any_changed_value_shows(column: str) -> None:
    original = rows()
    expected = checksum([pa.RecordBatch.from_pylist(original, schema=SCHEMA)])
    other = rows(seed=9)
    changed = 0
    for index in range(40):
        value = other[index][column] if column != "_offset" else index + 1
        if value == original[index][column]:
            continue
        altered = [dict(row) for row in original]
        altered[index][column] = value
        assert checksum([pa.RecordBatch.from_pylist(altered, schema=SCHEMA)]) != expected
        changed += 1
    assert changed > 10


def test_order_and_count_show() -> None:
    expected = checksum([pa.RecordBatch.from_pylist(rows(), schema=SCHEMA)])
    swapped = rows()
    swapped[3], swapped[4] = swapped[4], swapped[3]
    assert checksum([pa.RecordBatch.from_pylist(swapped, schema=SCHEMA)]) != expected
    assert checksum([pa.RecordBatch.from_pylist(rows()[:-1], schema=SCHEMA)]) != expected


def test_ranges_join_into_the_whole() -> None:
    whole = pa.RecordBatch.from_pylist(rows(), schema=SCHEMA)
    for cuts in ([1], [20], [39], [7, 8, 31]):
        total = RowsChecksum().streams()
        for low, high in itertools.pairwise([0, *cuts, 40]):
            part = RowsChecksum(low)
            part.add(whole.slice(low, high - low))
            total = from_text(to_text(joined(total, part.streams())))
        assert value(total) == checksum([whole])
        assert {name: stream.start for name, stream in total.items()} == dict.fromkeys(total, 0)


def test_ranges_join_in_their_order_only() -> None:
    whole = pa.RecordBatch.from_pylist(rows(), schema=SCHEMA)
    halves = []
    for start in (0, 20):
        half = RowsChecksum(start)
        half.add(whole.slice(start, 20))
        halves.append(half.streams())
    assert value(joined(*halves)) == checksum([whole])
    assert value(joined(*reversed(halves))) != checksum([whole])


def test_a_column_that_comes_later_starts_there() -> None:
    whole = pa.RecordBatch.from_pylist(rows(), schema=SCHEMA)
    early, late = RowsChecksum(0), RowsChecksum(10)
    early.add(whole.slice(0, 10).select(["_offset", "text"]))
    late.add(whole.slice(10))
    total = joined(early.streams(), late.streams())
    assert total["text"].start == 0
    assert total["flag"].start == 10


def test_a_wider_type_is_the_same_value() -> None:
    narrow = pa.record_batch({"a": pa.array([1, None, -3], pa.int16()), "b": pa.array([0.5, None, 2.0], pa.float32())})
    wide = narrow.cast(pa.schema([("a", pa.int64()), ("b", pa.float64())]))
    price = pa.array([Decimal("1.20"), None], pa.decimal128(5, 2))
    assert checksum([narrow]) == checksum([wide])
    assert checksum([pa.record_batch({"p": price})]) == checksum(
        [pa.record_batch({"p": price.cast(pa.decimal256(40, 2))})]
    )


def test_values_beneath_a_null_list_or_map_mean_nothing() -> None:
    """Of three values the one in the middle is null, and has two of its own all the same."""
    buffers = [pa.py_buffer(bytes([0b101])), pa.array([0, 2, 4, 5], pa.int32()).buffers()[1]]
    numbers, keys = pa.array(range(5), pa.int64()), pa.array(list("abcde"))
    fields = [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.int64())]
    entries = pa.StructArray.from_arrays([keys, numbers], fields=fields)
    for kind, values in ((pa.list_(pa.int64()), numbers), (pa.map_(pa.string(), pa.int64()), entries)):
        beneath = pa.Array.from_buffers(kind, 3, buffers, children=[values])
        plain = pa.array(beneath.to_pylist(), kind)
        assert checksum([pa.record_batch([beneath], ["it"])]) == checksum([pa.record_batch([plain], ["it"])])
        parts = [pa.record_batch([beneath.slice(at, 1)], ["it"]) for at in range(3)]
        assert checksum(parts) == checksum([pa.record_batch([plain], ["it"])])
