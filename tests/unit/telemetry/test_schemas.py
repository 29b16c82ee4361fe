"""The columns of the tables."""

from __future__ import annotations

import pyarrow as pa
import pytest

from frazil.core.rows.storable import check_types
from frazil.telemetry.schemas import errors_table, tables_of
from frazil.telemetry.signals import Signal

TABLES = [(signal, table) for signal in Signal for table in tables_of(signal)]


@pytest.mark.parametrize(("signal", "table"), TABLES)
def test_an_iceberg_table_can_have_the_columns(signal: Signal, table: str) -> None:
    schema = tables_of(signal)[table]
    assert len(set(schema.names)) == len(schema.names)
    check_types(schema)


@pytest.mark.parametrize("signal", Signal)
def test_the_own_table_is_first_and_the_table_of_errors_last(signal: Signal) -> None:
    assert next(iter(tables_of(signal))) == signal.value
    assert list(tables_of(signal))[-1] == errors_table(signal) == f"{signal.value}__errors"


@pytest.mark.parametrize(("signal", "table"), TABLES)
def test_every_row_begins_with_where_it_comes_from(signal: Signal, table: str) -> None:
    schema = tables_of(signal)[table]
    assert schema.names[:4] == ["_offset", "_topic_partition", "_index", "_append_time"]
    assert schema.field("_index").nullable == (table == errors_table(signal))
    if table != errors_table(signal):
        assert schema.field("timestamp").type == pa.timestamp("us", "UTC")
        assert not schema.field("timestamp").nullable
