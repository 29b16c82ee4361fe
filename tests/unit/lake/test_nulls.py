"""Null and empty are not the same, however deep."""

from __future__ import annotations

import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import frazil
from frazil.lake.catalogs.opening import open_catalog
from frazil.lake.files.writer import write_data_files

ITEM = pa.struct([("x", pa.int32())])
SCHEMA = pa.schema(
    [
        ("a", pa.list_(ITEM)),
        ("b", pa.map_(pa.string(), ITEM)),
        ("c", pa.struct([("inner", pa.list_(ITEM)), ("map", pa.map_(pa.string(), ITEM))])),
        ("d", pa.list_(pa.list_(ITEM))),
        ("e", pa.large_list(ITEM)),
    ]
)
ROWS = [
    {"a": None, "b": None, "c": None, "d": None, "e": None},
    {"a": [], "b": [], "c": {"inner": None, "map": None}, "d": [None, [], [None]], "e": []},
    {"a": [None, {"x": 1}], "b": [("k", None)], "c": {"inner": [], "map": []}, "d": [], "e": [{"x": None}]},
    {"a": None, "b": None, "c": {"inner": [{"x": 2}], "map": [("", {"x": 3})]}, "d": [[{"x": 4}]], "e": None},
]


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_null_list_or_map_of_structs_stays_null(tmp_path: Path, first: int) -> None:
    catalog = open_catalog(frazil.Settings(data=tmp_path))
    catalog.create_namespace("ns")
    table = catalog.create_table("ns.odd", schema=SCHEMA)
    rows = pa.Table.from_pylist(ROWS, schema=SCHEMA).slice(first)
    (file,) = write_data_files(table.metadata.model_dump_json(), table.io.properties, rows, uuid.uuid4())
    assert pq.read_table(file.file_path.removeprefix("file://")).to_pylist() == ROWS[first:]
