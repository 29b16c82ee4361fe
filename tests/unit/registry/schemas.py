"""Schemas that several tests use."""

from __future__ import annotations

import functools
import json
from typing import Any

from frazil.registry.definition import Definition
from frazil.registry.definitions import parse_definition
from frazil.registry.kinds import SchemaType


def record(*fields: dict[str, Any], name: str = "Order", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "Colour", "symbols": list(symbols), **more}


def fixed(size: int, name: str = "Hash") -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size}


def schema(**types: str) -> bytes:
    """A JSON schema of an object with such properties."""
    properties = {name: {"type": kind} for name, kind in types.items()}
    return json.dumps({"type": "object", "properties": properties}).encode()


def avro(schema: Any) -> Definition:
    return parse_definition(SchemaType.AVRO, json.dumps(schema).encode())


def json_schema(schema: Any) -> Definition:
    return parse_definition(SchemaType.JSON_SCHEMA, json.dumps(schema).encode())


@functools.cache
def protobuf(*messages: str, syntax: str = "proto3") -> Definition:
    return parse_definition(SchemaType.PROTOBUF, f'syntax = "{syntax}";\n{chr(10).join(messages)}'.encode())
