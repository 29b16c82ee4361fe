"""The columns of a typed topic from a file: an Arrow IPC schema, or JSON that a person can write."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa

from frazil.core.errors import InvalidInput

_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns),\s*(?:tz=)?([^\]]+)\]")
_DECIMAL = re.compile(r"decimal(?:128)?\((\d{1,2}),\s*(\d{1,2})\)")
_LIST = re.compile(r"list<(?:item:\s*)?(.+)>")


def load_schema(path: Path) -> pa.Schema:
    """`[{"name": "amount", "type": "int64", "nullable": false}, …]`, or the bytes of an Arrow schema."""
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
    return pa.schema([_field(path, number, column) for number, column in enumerate(columns, start=1)])


def _field(path: Path, number: int, column: Any) -> pa.Field:
    where = f"--schema: column {number} in {path}"
    if not isinstance(column, dict) or not isinstance(column.get("name"), str):
        raise InvalidInput(f"{where} must be an object with a name and a type")
    unknown = set(column) - {"name", "type", "nullable"}
    if unknown:
        raise InvalidInput(f"{where}: {', '.join(sorted(unknown))} is not known; use name, type, nullable")
    nullable = column.get("nullable", True)
    if not isinstance(nullable, bool):
        raise InvalidInput(f"{where}: nullable must be true or false")
    return pa.field(column["name"], _type(where, column.get("type")), nullable=nullable)


def _type(where: str, text: Any) -> pa.DataType:
    if not isinstance(text, str):
        raise InvalidInput(f"{where} needs a type, for example int64")
    try:
        if found := _TIMESTAMP.fullmatch(text):
            return pa.timestamp(found.group(1), tz=found.group(2).strip())
        if found := _DECIMAL.fullmatch(text):
            return pa.decimal128(int(found.group(1)), int(found.group(2)))
        if found := _LIST.fullmatch(text):
            return pa.list_(_type(where, found.group(1)))
        return pa.type_for_alias(text)
    except (ValueError, pa.ArrowException):
        raise InvalidInput(
            f"{where}: {text!r} is no type; use int32, int64, double, string, binary, bool, date32, "
            "timestamp[us, UTC], decimal(10, 2), list<string>, …"
        ) from None
