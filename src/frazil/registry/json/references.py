"""Resolution of `$ref` within a JSON Schema, and the cost of following all references."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLE = ("not", "if", "then", "else")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_OF_PARTS = ("properties", "patternProperties", "dependentSchemas")
_OF_PART = ("items", "additionalProperties", "additionalItems", "contains", "propertyNames", "unevaluatedItems",
            "unevaluatedProperties")  # fmt: skip


class References:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._named = dict(_names(root))

    def target(self, reference: str) -> Any:
        if reference in ("", "#"):
            return self._root
        if not reference.startswith("#/"):
            return self._named.get(reference)
        at = self._root
        for step in reference[2:].split("/"):
            key = _unquoted(step)
            if isinstance(at, dict) and key in at:
                at = at[key]
            elif isinstance(at, list) and key.isdecimal() and int(key) < len(at):
                at = at[int(key)]
            else:
                return None
        return at

    def steps(self) -> int:
        """Return an upper bound of the schemas that a validator visits for one value with one value per level.

        A schema that is used twice counts twice, recursively: a few lines can require unbounded work.
        """
        return self._steps(self._root, {}, set())

    def _steps(self, schema: Any, known: dict[int, int], within: set[int]) -> int:
        if not isinstance(schema, dict) or id(schema) in within:
            return 1
        if id(schema) not in known:
            within.add(id(schema))
            same = sum(self._steps(one, known, within) for one in self._same_value(schema))
            below = max((self._steps(one, known, within) for one in _parts_of(schema)), default=0)
            within.discard(id(schema))
            known[id(schema)] = 1 + same + below
        return known[id(schema)]

    def _same_value(self, schema: dict[str, Any]) -> Iterator[Any]:
        for key in _LISTS:
            if isinstance(schema.get(key), list):
                yield from schema[key]
        for key in _SINGLE:
            yield schema.get(key)
        for key in _REFERENCES:
            if isinstance(schema.get(key), str):
                yield self.target(schema[key])


def _parts_of(schema: dict[str, Any]) -> Iterator[Any]:
    for key in _OF_PARTS:
        if isinstance(schema.get(key), dict):
            yield from schema[key].values()
    for key in _OF_PART:
        yield schema.get(key)
    for key in ("items", "prefixItems"):
        if isinstance(schema.get(key), list):
            yield from schema[key]


def _names(schema: Any) -> Iterator[tuple[str, Any]]:
    """Return the anchors by which a reference may name a part of the schema, besides its path."""
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            waiting += one.values()
            for key, form in (("$anchor", "#{}"), ("$dynamicAnchor", "#{}"), ("$id", "{}"), ("id", "{}")):
                if isinstance(one.get(key), str):
                    yield form.format(one[key]), one


def _unquoted(step: str) -> str:
    return unquote(step).replace("~1", "/").replace("~0", "~")
