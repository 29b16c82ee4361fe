"""Compares what the decoder makes of requests with what the plain decoder makes of them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from otlp_reference import Row, parsed, reference_rows
from otlp_values import of_double, of_maps, of_text

from frazil.core.rows import TIME
from frazil.telemetry.decode import Decoded, decode
from frazil.telemetry.schemas import tables_of
from frazil.telemetry.signals import Signal

UNSIGNED = {
    *("time_unix_nano", "start_time_unix_nano", "observed_time_unix_nano", "duration_ns"),
    *("count", "zero_count", "bucket_counts", "positive_bucket_counts", "negative_bucket_counts"),
}
"""Columns that hold the 64 bits of an unsigned number."""
APPEND_US = 1_767_323_045_000_006
FIRST_OFFSET = 1000
PARTITION = 7


def decoded(signal: Signal, requests: list[bytes]) -> Decoded:
    count = len(requests)
    found = decode(
        signal,
        pa.array(requests, pa.binary()),
        pa.array(range(FIRST_OFFSET, FIRST_OFFSET + count), pa.int64()),
        pa.array(range(APPEND_US, APPEND_US + count), pa.int64()).view(TIME),
        PARTITION,
    )
    tables = tables_of(signal)
    for table, batch in found.rows.items():
        batch.validate(full=True)
        assert batch.schema == tables[table]
    found.errors.validate(full=True)
    return found


def assert_same_as_reference(signal: Signal, requests: list[bytes]) -> None:
    """Every request is rows with every value that was sent, or an error if `protobuf` does not accept it."""
    expected: dict[str, list[Row]] = {signal.value: []}
    errors = []
    for number, raw in enumerate(requests):
        request = parsed(signal, raw)
        if request is None:
            errors.append((FIRST_OFFSET + number, PARTITION, None, APPEND_US + number, raw))
            continue
        for table, row in reference_rows(signal, request, APPEND_US + number):
            head = {"_offset": FIRST_OFFSET + number, "_topic_partition": PARTITION, "_append_time": APPEND_US + number}
            expected.setdefault(table, []).append({**head, **row})
    found = decoded(signal, requests)
    names = ("_offset", "_topic_partition", "_index", "_append_time", "raw")
    rows = _microseconds(found.errors).to_pylist()
    assert [tuple(row[name] for name in names) for row in rows] == errors
    assert all(row["reason"] for row in rows)
    assert found.rows.keys() == expected.keys()
    for table, batch in found.rows.items():
        actual = [_plain(row) for row in _microseconds(batch).to_pylist()]
        assert len(actual) == len(expected[table])
        for one, other in zip(actual, expected[table], strict=True):
            _assert_same(one, other)


def _assert_same(actual: Row, expected: Row) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        if value is not ...:
            assert actual[name] == value, name


def _microseconds(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Times as numbers: Python's own end with the year 9999, and have no leap of their own."""
    fields = [pa.field(field.name, pa.int64()) if field.type == TIME else field for field in batch.schema]
    return pa.RecordBatch.from_arrays(
        [column.view(pa.int64()) if column.type == TIME else column for column in batch.columns],
        schema=pa.schema(fields),
    )


def _plain(row: Row) -> Row:
    plain = {}
    for name, value in row.items():
        if name.endswith("_types") or name == "body_type":
            continue
        if f"{name}_types" in row:
            plain[name] = of_maps(value, row[f"{name}_types"])
        elif name == "body":
            plain[name] = of_text(value, row["body_type"])
        else:
            plain[name] = _value(name, value)
    return plain


def _value(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) if isinstance(one, dict) else _value(name, one) for one in value]
    if name in UNSIGNED and value is not None:
        return value % 2**64
    if hasattr(value, "timestamp"):
        return (int(value.replace(microsecond=0).timestamp()) * 1_000_000) + value.microsecond
    return of_double(value) if isinstance(value, float) else value
