"""The checksum of rows: the same however they are cut, another as soon as anything in them is."""

from __future__ import annotations

import itertools
import random
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from frazil.lake.checksum import RowsChecksum

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
