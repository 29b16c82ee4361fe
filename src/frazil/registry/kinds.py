"""The protocol's names of schema types, compatibility modes and validation policies; other names are refused."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from frazil.core.errors import InvalidInput


class SchemaType(StrEnum):
    BYTES = "bytes"
    STRING = "string"
    NUMBER = "number"
    AVRO = "avro"
    JSON_SCHEMA = "json_schema"
    PROTOBUF = "protobuf"

    @classmethod
    def parse(cls, text: str, field: str = "schema_type") -> SchemaType:
        return _parse(cls, text, field, {"json": cls.JSON_SCHEMA, "jsonschema": cls.JSON_SCHEMA, "proto": cls.PROTOBUF})


class CompatibilityMode(StrEnum):
    """Which schema must read which data: the new one the old data, the old one the new data, or both."""

    NONE = "none"
    BACKWARD = "backward"
    FORWARD = "forward"
    FULL = "full"

    @classmethod
    def parse(cls, text: str, field: str = "compatibility_mode") -> CompatibilityMode:
        return _parse(cls, text, field, {})

    @property
    def is_backward(self) -> bool:
        return self in (CompatibilityMode.BACKWARD, CompatibilityMode.FULL)

    @property
    def is_forward(self) -> bool:
        return self in (CompatibilityMode.FORWARD, CompatibilityMode.FULL)


class ValidationPolicy(StrEnum):
    """What happens to a message that does not match: it is not checked, reported but accepted, or refused."""

    NONE = "none"
    WARN = "warn"
    ENFORCE = "enforce"

    @classmethod
    def parse(cls, text: str, field: str = "validation_policy") -> ValidationPolicy:
        return _parse(cls, text, field, {})


Word = TypeVar("Word", bound=StrEnum)


def _parse(words: type[Word], text: str, field: str, also: dict[str, Word]) -> Word:
    said = text.lower() if isinstance(text, str) else ""
    if said in also:
        return also[said]
    try:
        return words(said)
    except ValueError:
        raise InvalidInput(f"{field}: must be one of {', '.join(words)}, not {text!r:.80}", field=field) from None
