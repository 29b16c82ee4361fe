"""Values of attributes as Python has them, for tests of senders."""

from __future__ import annotations

from typing import Any

START_NS = 1_700_000_000_123_456_789
"""The time of the spans and records that the senders send."""


def plain(value: Any) -> Any:
    """A value of an attribute, from `AnyValue`."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(plain(one) for one in value.array_value.values)
    if kind == "kvlist_value":
        return {one.key: plain(one.value) for one in value.kvlist_value.values}
    return None if kind is None else getattr(value, kind)


def named(attributes: Any) -> dict[str, Any]:
    return {one.key: plain(one.value) for one in attributes}
