"""Resolution of `$ref` within a JSON Schema, and the cost of following all references."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote

_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLE = ("not", "if", "then", "else")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_OF_SAME = ("dependentSchemas", "dependencies")
"""Schemas by name, each for the whole value."""
_OF_PART = ("items", "additionalProperties", "additionalItems", "contains", "propertyNames", "unevaluatedItems",
            "unevaluatedProperties")  # fmt: skip


class CheckCost(NamedTuple):
    """What it takes to check one value with one value per level."""

    steps: int
    """Schemas that a validator visits, and values that it compares with, at most. Within a recursion: of one round."""
    returns: int
    """How often a recursion begins again for a single value one level below; 0 without recursion."""


_ONE = CheckCost(1, 0)


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

    def cost(self) -> CheckCost:
        """Return an upper bound. A schema that is used twice counts twice, recursively: a few lines can require
        unbounded work."""
        return self._cost(self._root, {}, set())

    def _cost(self, schema: Any, known: dict[int, CheckCost], within: set[int]) -> CheckCost:
        if not isinstance(schema, dict):
            return _ONE
        if id(schema) in within:
            return CheckCost(1, 1)
        if id(schema) not in known:
            within.add(id(schema))
            every = [self._cost(one, known, within) for one in (*self._same_value(schema), *_every_part(schema))]
            every += [
                CheckCost(max(one.steps for one in costs), max(one.returns for one in costs))
                for costs in ([self._cost(one, known, within) for one in ones] for ones in _one_part_each(schema))
                if costs
            ]
            within.discard(id(schema))
            steps = 1 + _compared(schema) + sum(one.steps for one in every)
            known[id(schema)] = CheckCost(steps, sum(one.returns for one in every))
        return known[id(schema)]

    def _same_value(self, schema: dict[str, Any]) -> Iterator[Any]:
        for key in _LISTS:
            if isinstance(schema.get(key), list):
                yield from schema[key]
        yield from (schema[key] for key in _SINGLE if key in schema)
        for key in _OF_SAME:
            if isinstance(schema.get(key), dict):
                yield from schema[key].values()
        for key in _REFERENCES:
            if isinstance(schema.get(key), str):
                yield self.target(schema[key])


def patterns_of(root: Any) -> int:
    """Return how many regular expressions a schema has: each is compiled, whether or not it is used."""
    found, waiting = 0, [root]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            waiting += one.values()
            by_pattern = one.get("patternProperties")
            found += len(by_pattern) if isinstance(by_pattern, dict) else 0
            found += isinstance(one.get("pattern"), str)
    return found


def _every_part(schema: dict[str, Any]) -> Iterator[Any]:
    """Return the schemas that may all apply to the same part of a value."""
    if isinstance(schema.get("patternProperties"), dict):
        yield from schema["patternProperties"].values()
    yield from (schema[key] for key in _OF_PART if isinstance(schema.get(key), dict | bool))


def _one_part_each(schema: dict[str, Any]) -> Iterator[list[Any]]:
    """Return groups of schemas of which one applies to a part of a value."""
    if isinstance(schema.get("properties"), dict):
        yield list(schema["properties"].values())
    for key in ("items", "prefixItems"):
        if isinstance(schema.get(key), list):
            yield schema[key]


def _compared(schema: dict[str, Any]) -> int:
    """Return with how many entries of lists a value is compared one by one. Texts and numbers are looked up."""
    enum, dependent = schema.get("enum"), schema.get("dependentRequired")
    entries = len(enum) if isinstance(enum, list) and any(isinstance(one, list | dict) for one in enum) else 0
    return entries + (len(dependent) if isinstance(dependent, dict) else 0)


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
