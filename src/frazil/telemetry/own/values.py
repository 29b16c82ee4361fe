"""What all requests of this process have: its resource and its scope, and values of attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

SCOPE = "frazil"
INT_MAX = 2**63 - 1

Attributes = Mapping[str, Any]


def key_values(given: Attributes) -> list[KeyValue]:
    return [KeyValue(key=key, value=any_value(value)) for key, value in given.items()]


def any_value(value: Any) -> AnyValue:
    """Return a value of its own type; of any other kind, its text."""
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int) and abs(value) <= INT_MAX:
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    return AnyValue(string_value=clean_text(value if isinstance(value, str) else str(value)))


def clean_text(text: str) -> str:
    """Return a text that is valid UTF-8: names of files may have lone surrogates."""
    return text.encode("utf-8", "replace").decode("utf-8")


def resource_of(given: Attributes) -> Resource:
    return Resource(attributes=key_values(given))


def scope_of_frazil(version: str) -> InstrumentationScope:
    return InstrumentationScope(name=SCOPE, version=version)
