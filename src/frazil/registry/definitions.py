"""Parse definitions of any schema type, and restore stored ones."""

from __future__ import annotations

from frazil.registry.avro.schema import AvroSchema
from frazil.registry.definition import BytesSchema, Definition, NumberSchema, StringSchema, decode
from frazil.registry.json.schema import JsonSchema
from frazil.registry.kinds import SchemaType
from frazil.registry.protobuf.schema import ProtobufSchema

_PLAIN = {each.type: each for each in (BytesSchema, StringSchema, NumberSchema)}


def parse_definition(schema_type: SchemaType, content: bytes) -> Definition:
    """Raise `InvalidSchema` if the content is not a definition of that type."""
    if schema_type in _PLAIN:
        return _PLAIN[schema_type]()
    return stored_definition(schema_type, decode(content), {})


def stored_definition(schema_type: SchemaType, text: str, extra: dict[str, str]) -> Definition:
    if schema_type in _PLAIN:
        return _PLAIN[schema_type]()
    if schema_type is SchemaType.AVRO:
        return AvroSchema(text)
    if schema_type is SchemaType.JSON_SCHEMA:
        return JsonSchema(text)
    return ProtobufSchema(text, extra or None)
