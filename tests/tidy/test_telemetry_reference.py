"""The page on the tables of telemetry has the columns that the tables have, with their types."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa
import pytest
from documents import DOCS, table_rows

from frazil.telemetry.decode.values import KINDS
from frazil.telemetry.schemas import errors_table, tables_of
from frazil.telemetry.schemas.metrics import EXEMPLAR, QUANTILE
from frazil.telemetry.schemas.shared import ENTITY_REF
from frazil.telemetry.schemas.traces import EVENT, LINK
from frazil.telemetry.signals import Signal

PAGE = DOCS / "reference" / "telemetry-tables.md"
HEAD, CONTEXT, POINTS, ERRORS = "## Where a row comes from", "## Resource and scope", "## Points", "## Errors"
TABLES = {table: (signal, schema) for signal in Signal for table, schema in tables_of(signal).items()}
STRUCTS = {
    "## Entity references": ENTITY_REF,
    "## Events": EVENT,
    "## Links": LINK,
    "## Exemplars": EXEMPLAR,
    "## Quantile values": QUANTILE,
}
PLAIN = {
    pa.int64(): "long",
    pa.int32(): "int",
    pa.string(): "string",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
    pa.timestamp("us", "UTC"): "timestamptz",
    pa.map_(pa.string(), pa.string()): "map of string to string",
}


def _documented(heading: str) -> list[tuple[str, str]]:
    found = [(name, row[1]) for row in table_rows(PAGE, heading) for name in re.findall(r"`(\w+)`", row[0])]
    assert found, heading
    return found


def _shown(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return "list of structs" if pa.types.is_struct(kind.value_type) else f"list of {_shown(kind.value_type)}"
    return PLAIN[kind]


def _columns(fields: Iterable[pa.Field]) -> list[tuple[str, str]]:
    return [(field.name, _shown(field.type) + ("" if field.nullable else ", required")) for field in fields]


def _headings(table: str) -> list[str]:
    if table.endswith("__errors"):
        return [HEAD, ERRORS]
    match table:
        case "traces" | "logs":
            return [HEAD, CONTEXT, f"## {table}"]
        case "metrics":
            return [HEAD, "## metrics"]
        case _:
            return [HEAD, CONTEXT, POINTS, f"## {table}"]


@pytest.mark.parametrize("table", TABLES)
def test_the_page_has_the_columns_of_the_table(table: str) -> None:
    signal, schema = TABLES[table]
    documented = [column for heading in _headings(table) for column in _documented(heading)]
    if table == errors_table(signal):
        documented = [(name, "int" if name == "_index" else kind) for name, kind in documented]
    assert sorted(documented) == sorted(_columns(schema))
    own = _headings(table)[-1]
    if own != ERRORS:
        names = [name for name, _ in _documented(own)]
        assert names == [name for name in schema.names if name in names]


@pytest.mark.parametrize("heading", STRUCTS)
def test_the_page_has_the_fields_of_the_structs(heading: str) -> None:
    kind = STRUCTS[heading]
    assert _documented(heading) == _columns(kind.field(index) for index in range(kind.num_fields))


def test_the_page_has_the_types_of_values() -> None:
    assert {row[0].strip("`") for row in table_rows(PAGE, "## Attributes")} == {*KINDS} - {"string"}


def test_the_page_lists_all_tables() -> None:
    listed = [name for row in table_rows(PAGE, "# Telemetry tables") for name in re.findall(r"`(\w+)`", row[0])]
    assert listed[: len(TABLES)] == [
        *(one for one in TABLES if "__" not in one),
        *(one for one in TABLES if "__" in one),
    ]
