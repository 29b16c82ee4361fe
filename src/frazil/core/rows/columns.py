"""The columns of a typed topic, as written in JSON and as sent by programs."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from frazil.core.errors import InvalidInput, SchemaMismatch

SCHEMA_CHARACTERS_MAX = 1024 * 1024
"""Size of a schema as text."""

_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns),\s*(?:tz=)?([^\]]+)\]")
_DECIMAL = re.compile(r"decimal(?:128)?\((\d{1,2}),\s*(\d{1,2})\)")
_LIST = re.compile(r"list<(?:item:\s*)?(.+)>")


def columns_schema(columns: Sequence[Any], source: str) -> pa.Schema:
    """Parse `[{"name": "amount", "type": "int64", "nullable": false}, …]`; errors name `source`."""
    return pa.schema([_field(f"{source}: column {number}", one) for number, one in enumerate(columns, start=1)])


def schema_as_text(schema: pa.Schema) -> str:
    """Encode the whole schema in Arrow's form, as base64."""
    return base64.b64encode(schema.serialize()).decode()


def schema_from_text(text: str, field: str = "schema") -> pa.Schema:
    """Decode a schema from untrusted text; errors name `field`."""
    try:
        found = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
        hash(found)
    except (binascii.Error, pa.ArrowException, ValueError, OSError, EOFError) as error:
        raise SchemaMismatch(f"{field}: is not Arrow's form of a schema ({error})", field=field) from None
    return found


def _field(where: str, column: Any) -> pa.Field:
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
