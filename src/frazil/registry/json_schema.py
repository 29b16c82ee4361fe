"""JSON Schema, checked by the same engine as that of the real broker; nothing is fetched from elsewhere.

What may follow what are the protocol's own rules: they look at fields, whether they are required, and their types, here
also those of nested objects and of the items of arrays.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs

from frazil.core.errors import InvalidSchema
from frazil.registry.definition import FIELD, Definition, Validator, load_json
from frazil.registry.kinds import SchemaType

PROBLEM_LENGTH_MAX = 300


class JsonSchema(Definition):
    type = SchemaType.JSON_SCHEMA

    def __init__(self, text: str) -> None:
        self.value = load_json(text)
        self._compiled = _compile(self.value)
        super().__init__(text, json.dumps(self.value, sort_keys=True, separators=(",", ":")))

    def backward(self, old: Definition) -> list[str]:
        assert isinstance(old, JsonSchema)
        return list(dict.fromkeys(_backward(old.value, self.value, "")))

    def forward(self, old: Definition) -> list[str]:
        assert isinstance(old, JsonSchema)
        return list(dict.fromkeys(_forward(old.value, self.value, "")))

    def tagged(self) -> Any:
        return {"JsonSchema": {"raw_schema": self.text, "fingerprint": self.fingerprint}}

    def validator(self) -> Validator:
        compiled = self._compiled

        def problem(payload: bytes) -> str | None:
            try:
                value = json.loads(payload, parse_constant=_no_constant)
            except RecursionError:
                return "is nested too deep"
            except ValueError as error:
                return f"is not JSON: {error}"
            try:
                if compiled.is_valid(value):
                    return None
                first = next(compiled.iter_errors(value))
            except ValueError as error:  # nested deeper than the engine follows, or not text
                return str(error)[:PROBLEM_LENGTH_MAX]
            where = "".join(f"/{part}" for part in first.instance_path)
            return f"{where or 'the payload'}: {first.message}"[:PROBLEM_LENGTH_MAX]

        return problem


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _compile(value: Any) -> Any:
    if not isinstance(value, dict | bool):
        raise InvalidSchema(FIELD, f"a JSON Schema is an object or a boolean, not {type(value).__name__}")
    try:
        return jsonschema_rs.validator_for(value, offline=True)
    except jsonschema_rs.ValidationError as error:
        where = "".join(f"/{part}" for part in error.instance_path)
        raise InvalidSchema(FIELD, f"{where or 'the schema'}: {error.message[:PROBLEM_LENGTH_MAX]}") from None
    except ValueError as error:
        raise InvalidSchema(FIELD, str(error)[:PROBLEM_LENGTH_MAX]) from None


def _backward(old: Any, new: Any, path: str) -> list[str]:
    reasons = []
    had, has = _required(old), _required(new)
    for name in sorted(had - has - _properties(new).keys()):
        reasons.append(f"removed required field {path}/{name}")
    for name in sorted((has - had) & _properties(old).keys()):
        reasons.append(f"made optional field {path}/{name} required")
    return reasons + _changed(old, new, path, _backward)


def _forward(old: Any, new: Any, path: str) -> list[str]:
    added = sorted(_required(new) - _required(old) - _properties(old).keys())
    return [f"added new required field {path}/{name}" for name in added] + _changed(old, new, path, _forward)


def _changed(old: Any, new: Any, path: str, below: Any) -> list[str]:
    """A changed type of this value, and whatever is wrong below it."""
    before, after = _types(old), _types(new)
    if before and after and before != after:
        was, is_now = (" or ".join(sorted(types)) for types in (before, after))
        return [f"changed type of {f'field {path}' if path else 'the whole'} from {was} to {is_now}"]
    reasons: list[str] = []
    fields = _properties(new)
    for name, field in _properties(old).items():
        if name in fields:
            reasons += below(field, fields[name], f"{path}/{name}")
    items = (_part(old, "items"), _part(new, "items"))
    if all(isinstance(each, dict) for each in items):
        reasons += below(*items, f"{path}/[]")
    return reasons


def _part(schema: Any, key: str) -> Any:
    return schema.get(key) if isinstance(schema, dict) else None


def _properties(schema: Any) -> dict[str, Any]:
    found = _part(schema, "properties")
    return found if isinstance(found, dict) else {}


def _required(schema: Any) -> set[str]:
    found = _part(schema, "required")
    return {name for name in found if isinstance(name, str)} if isinstance(found, list) else set()


def _types(schema: Any) -> set[str]:
    found = _part(schema, "type")
    return {found} if isinstance(found, str) else set(found) if isinstance(found, list) else set()
