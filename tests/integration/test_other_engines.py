"""The same rows for everyone: what the mover wrote is read by PyIceberg, by Spark SQL with Iceberg's own runtime, and
by DuckDB, over the planned files and over Arrow. DuckDB's own Iceberg extension is not to be had without a network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import frazil
from frazil.core.settings import Settings
from parts.engines import World, plain, world
from parts.fixtures import lakes_of

ROOM = pa.struct([("name", pa.string()), ("m2", pa.int32())])
TYPED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("flag", pa.bool_()),
        ("small", pa.int16()),
        ("number", pa.int32()),
        ("ratio", pa.float32()),
        ("celsius", pa.float64()),
        ("price", pa.decimal128(38, 9)),
        ("day", pa.date32()),
        ("local_time", pa.timestamp("us")),
        ("moment", pa.timestamp("us", "UTC")),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("fixed", pa.binary(4)),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.list_(pa.int64()))),
        ("address", pa.struct([("street", pa.string()), ("rooms", pa.list_(ROOM))])),
    ]
)
FULL: dict[str, Any] = {
    "flag": True, "small": -(2**15), "number": 2**31 - 1, "ratio": 0.25, "celsius": 1e308,
    "price": Decimal("-12345678901234567890123456789.123456789"), "day": date(1969, 12, 31),
    "local_time": datetime(1583, 1, 1, 0, 0, 0, 1), "moment": datetime(2026, 2, 28, 23, 59, 59, 999_999, timezone.utc),  # noqa: DTZ001
    "text": "é 漢字 🧊 \u202eRTL\u202c \"'`,;\\ \t\r\n \x00 end", "raw": bytes(range(256)),
    "fixed": b"\x00\xff\x00\xff",
    "tags": ["", None, "a"], "counts": [("", []), ("x", [1, None, -(2**63)]), ("none", None)],
    "address": {"street": None, "rooms": [{"name": "hall", "m2": 9}, None, {"name": None, "m2": None}]},
}  # fmt: skip
ODD: list[dict[str, Any]] = [
    FULL,
    {},
    {"celsius": float("nan"), "ratio": float("nan"), "text": "", "raw": b"", "tags": [], "counts": []},
    {"celsius": float("-inf"), "ratio": float("inf"), "address": {"street": "x", "rooms": None}},
    {"celsius": -0.0, "ratio": -0.0, "price": Decimal("0.000000001"), "text": "\x00"},
]


@pytest.fixture(params=lakes_of("sqlite", "postgres", "rest"))
def both(
    request: pytest.FixtureRequest, lake_settings: Callable[[str], Settings], spark: SparkSession
) -> Iterator[World]:
    with world(lake_settings(request.param), spark) as found:
        yield found


def fill(both: World) -> None:
    start = datetime(2026, 3, 1, 22, tzinfo=timezone.utc)
    messages = [
        frazil.Outgoing(
            bytes([number]) * number, f"k\x00é{number}" if number % 3 else None, {"a\n": "ü", "": str(number)}
        )
        for number in range(40)
    ]
    both.topic("orders").publish_many(messages)
    times = [start + timedelta(hours=number) for number in range(4)]  # over midnight: two partitions more
    both.topic("orders").publish_many(pa.RecordBatch.from_pydict({"_payload": [b"later"] * 4, "_publish_time": times}))
    rows = [{"id": number, **odd} for number, odd in enumerate(ODD * 3)]
    both.topic("readings", TYPED).publish_many(pa.RecordBatch.from_pylist(rows, schema=TYPED))


def all_agree(both: World, name: str) -> list[dict[str, Any]]:
    expected = in_log(both, name)
    assert without_partition(both.by_pyiceberg(name)) == expected
    assert without_partition(both.by_spark(name)) == expected
    arrow = both.table(name).scan().to_arrow()
    with duckdb.connect() as duck:
        duck.register("rows", arrow)
        assert without_partition(plain(duck.sql("SELECT * FROM rows").to_arrow_table())) == expected
    return expected


def in_log(both: World, name: str) -> list[dict[str, Any]]:
    return plain(pa.Table.from_batches(list(both.topic(name).read_batches())))


def without_partition(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "_topic_partition"} for row in rows]


def test_every_engine_reads_the_same_rows_before_and_after_a_change_of_schema(both: World) -> None:
    fill(both)
    assert both.moved() == 44 + 15
    assert len(all_agree(both, "orders")) == 44
    assert len(all_agree(both, "readings")) == 15
    wider = pa.schema([*TYPED.set(3, pa.field("number", pa.int64())), pa.field("note", pa.string())])
    both.storage.change_schema(f"/{both.namespace}/readings", wider)
    rows = [{"id": 100 + number, **odd, "number": 2**40, "note": "n\x00"} for number, odd in enumerate(ODD)]
    both.topic("readings").publish_many(pa.RecordBatch.from_pylist(rows, schema=wider))
    assert both.moved() == 5
    expected = all_agree(both, "readings")
    assert [row["note"] for row in expected] == [None] * 15 + ["n\x00"] * 5
