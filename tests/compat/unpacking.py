"""Unpack a fixture anywhere. Iceberg names files by absolute paths, so these are rewritten to the new place."""

from __future__ import annotations

import contextlib
import io
import json
import sqlite3
import tarfile
import zlib
from pathlib import Path
from typing import Any

import fastavro

VERSIONS = sorted(path.parent for path in Path(__file__).parent.glob("*/data.tar.gz"))


def expected_of(version: Path) -> dict[str, Any]:
    expected: dict[str, Any] = json.loads((version / "expected.json").read_text(encoding="utf-8"))
    return expected


def unpack(version: Path, folder: Path) -> Path:
    """The fixture of a version, in `folder`: `data`, and `lake` with its catalog and warehouse."""
    with tarfile.open(version / "data.tar.gz") as tar:
        tar.extractall(folder, filter="data")
    made_at = str(expected_of(version)["made_at"])
    _move_tables(folder / "lake", made_at, str(folder))
    _move_marks(folder / "data", made_at, str(folder))
    return folder


def _move_marks(data: Path, old: str, new: str) -> None:
    """The data folder says to which catalog its rows are moved, and in which file of a table a subscription is."""
    mark = data / "log" / "~moved"
    if mark.exists():
        content = json.loads(mark.read_text(encoding="utf-8"))["content"].replace(old, new)
        mark.write_text(json.dumps({"crc": zlib.crc32(content.encode()), "content": content}), encoding="utf-8")
    with contextlib.closing(sqlite3.connect(data / "~meta.db")) as meta, meta:
        for table in ("entries", "changes"):
            changed = "CAST(replace(CAST(value AS TEXT), ?, ?) AS BLOB)"
            meta.execute(f"UPDATE {table} SET value = {changed} WHERE value IS NOT NULL", (old, new))


def _move_tables(lake: Path, old: str, new: str) -> None:
    for path in lake.rglob("*.metadata.json"):
        path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    lengths = {}
    for path in lake.rglob("*-m*.avro"):
        _rewrite(path, lambda text: text.replace(old, new), {})
        lengths[path.name] = path.stat().st_size
    for path in lake.rglob("snap-*.avro"):
        _rewrite(path, lambda text: text.replace(old, new), lengths)
    with contextlib.closing(sqlite3.connect(lake / "catalog.db")) as catalog, catalog:
        for column in ("metadata_location", "previous_metadata_location"):
            catalog.execute(f"UPDATE iceberg_tables SET {column} = replace({column}, ?, ?)", (old, new))


def _rewrite(path: Path, changed: Any, lengths: dict[str, int]) -> None:
    """An Avro file with other paths; a list of manifests also with their lengths."""
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        metadata, records = dict(reader.metadata), list(reader)
    for record in records:
        if "manifest_path" in record:
            record["manifest_path"] = changed(record["manifest_path"])
            record["manifest_length"] = lengths[record["manifest_path"].rpartition("/")[2]]
        else:
            record["data_file"]["file_path"] = changed(record["data_file"]["file_path"])
    schema = json.loads(metadata.pop("avro.schema"))
    codec = metadata.pop("avro.codec", "null")
    written = io.BytesIO()
    fastavro.writer(written, schema, records, codec=codec, metadata=metadata)
    path.write_bytes(written.getvalue())
