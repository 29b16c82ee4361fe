"""The words of the protocol for types, modes and policies; whatever else is said is refused."""

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
    """Who must be able to read what: the new schema the old data, the old schema the new data, or both."""

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
    """What becomes of a message that does not fit: nothing is looked at, it is told and passes, it is refused."""

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
