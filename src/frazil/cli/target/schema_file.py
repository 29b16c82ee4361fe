"""Load the columns of a typed topic from a file: an Arrow IPC schema, or JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa

from frazil.core.errors import InvalidInput
from frazil.core.rows.columns import columns_schema


def load_schema(path: Path) -> pa.Schema:
    """Load `[{"name": "amount", "type": "int64", "nullable": false}, …]`, or the bytes of an Arrow schema."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"--schema: cannot read {path}: {error.strerror}") from None
    if data.lstrip()[:1] == b"[":
        return _from_json(path, data)
    return _from_arrow(path, data)


def _from_arrow(path: Path, data: bytes) -> pa.Schema:
    try:
        return pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError, ValueError):
        pass
    try:
        return pa.ipc.open_file(pa.py_buffer(data)).schema
    except (pa.ArrowException, OSError, ValueError):
        raise InvalidInput(
            f"--schema: {path} is neither an Arrow IPC schema nor a JSON list of name, type and nullable"
        ) from None


def _from_json(path: Path, data: bytes) -> pa.Schema:
    try:
        columns = json.loads(data)
    except ValueError as error:
        raise InvalidInput(f"--schema: {path} is not valid JSON: {error}") from None
    return columns_schema(columns, f"--schema: {path}")
