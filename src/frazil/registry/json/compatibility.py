"""Compatibility of JSON Schemas by the protocol's rules: fields, whether they are required, and types.

A value is described by a schema, by everything that `$ref` and `allOf` add to it, and by what the enclosing schemas say
about the same field. So schemas are compared in sets, one for each place in a value; each pair of sets is compared
once, because schemas may refer to themselves.
"""

from __future__ import annotations

from collections import deque
from typing import Any, TypeAlias

from frazil.registry.json.references import References

PAIRS_MAX = 10_000
"""More places than real schemas have; a few lines of `$ref` can create any number of them."""

Parts: TypeAlias = "tuple[dict[str, Any], ...]"


def backward_problems(old: Any, new: Any) -> list[str]:
    return _Comparison(old, new, is_backward=True).problems()


def forward_problems(old: Any, new: Any) -> list[str]:
    return _Comparison(old, new, is_backward=False).problems()


class _Comparison:
    def __init__(self, old: Any, new: Any, *, is_backward: bool) -> None:
        self._old, self._new = _Schema(old), _Schema(new)
        self._is_backward = is_backward
        self._reasons: list[str] = []
        self._seen: set[tuple[frozenset[int], frozenset[int]]] = set()
        self._waiting: deque[tuple[Parts, Parts, str]] = deque()

    def problems(self) -> list[str]:
        """Visit places by depth, so that each problem is reported with its shortest path."""
        self._waiting.append((self._old.whole, self._new.whole, ""))
        while self._waiting:
            old, new, path = self._waiting.popleft()
            pair = (frozenset(map(id, old)), frozenset(map(id, new)))
            if pair in self._seen:
                continue
            if len(self._seen) == PAIRS_MAX:
                self._reasons.append(f"the schemas have more than {PAIRS_MAX} places to be compared")
                break
            self._seen.add(pair)
            self._compare(old, new, path)
        return list(dict.fromkeys(self._reasons))

    def _compare(self, old: Parts, new: Parts, path: str) -> None:
        fields_before, fields = self._old.fields(old), self._new.fields(new)
        self._look_at_required(_required(old), _required(new), fields_before.keys(), fields.keys(), path)
        before, after = _types(old), _types(new)
        if before and after and before != after:
            was, is_now = (" or ".join(sorted(types)) for types in (before, after))
            what = f"field {path}" if path else "the whole"
            self._reasons.append(f"changed type of {what} from {was} to {is_now}")
            return
        if lost := self._old.unknown(old) ^ self._new.unknown(new):
            self._reasons.append(f"changed the reference of {path or 'the whole'}: {', '.join(sorted(lost))}")
        for name in fields_before:
            if name in fields:
                self._waiting.append((fields_before[name], fields[name], f"{path}/{name}"))
        items_before, items = self._old.items(old), self._new.items(new)
        if items_before and items:
            self._waiting.append((items_before, items, f"{path}/[]"))

    def _look_at_required(self, had: set[str], has: set[str], before: Any, now: Any, path: str) -> None:
        if self._is_backward:
            self._reasons += [f"removed required field {path}/{name}" for name in sorted(had - has - now)]
            self._reasons += [f"made optional field {path}/{name} required" for name in sorted((has - had) & before)]
        else:
            self._reasons += [f"added new required field {path}/{name}" for name in sorted(has - had - before)]


class _Schema:
    def __init__(self, root: Any) -> None:
        self._references = References(root)
        self.whole = self._parts([root])

    def fields(self, parts: Parts) -> dict[str, Parts]:
        found: dict[str, list[Any]] = {}
        for part in parts:
            properties = part.get("properties")
            if isinstance(properties, dict):
                for name, schema in properties.items():
                    found.setdefault(name, []).append(schema)
        return {name: self._parts(schemas) for name, schemas in found.items()}

    def items(self, parts: Parts) -> Parts:
        return self._parts([part["items"] for part in parts if isinstance(part.get("items"), dict)])

    def unknown(self, parts: Parts) -> set[str]:
        """Return the references that do not resolve in this schema."""
        references = {part["$ref"] for part in parts if isinstance(part.get("$ref"), str)}
        return {reference for reference in references if self._references.target(reference) is None}

    def _parts(self, schemas: list[Any]) -> Parts:
        """Collect all schemas that apply to the same value."""
        found: dict[int, dict[str, Any]] = {}
        waiting = list(schemas)
        while waiting:
            schema = waiting.pop()
            if not isinstance(schema, dict) or id(schema) in found:
                continue
            found[id(schema)] = schema
            if isinstance(schema.get("allOf"), list):
                waiting += schema["allOf"]
            if isinstance(schema.get("$ref"), str):
                waiting.append(self._references.target(schema["$ref"]))
        return tuple(found.values())


def _required(parts: Parts) -> set[str]:
    lists = (part["required"] for part in parts if isinstance(part.get("required"), list))
    return {name for names in lists for name in names if isinstance(name, str)}


def _types(parts: Parts) -> set[str]:
    """Return the types that all schemas allow; a schema without a type allows all."""
    allowed: set[str] | None = None
    for part in parts:
        found = part.get("type")
        types = {found} if isinstance(found, str) else set(found) if isinstance(found, list) else None
        if types is not None:
            if "number" in types:
                types.add("integer")
            allowed = types if allowed is None else allowed & types
    if allowed and "number" in allowed:
        allowed.discard("integer")
    return allowed or set()
