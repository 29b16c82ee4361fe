"""JSON Schema, validated by the same engine as Danube's broker; nothing is fetched remotely."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs

from frazil.core.errors import InvalidSchema
from frazil.registry.definition import FIELD, Definition, Validator, load_json
from frazil.registry.json.compatibility import backward_problems, forward_problems
from frazil.registry.json.references import References
from frazil.registry.kinds import SchemaType

PROBLEM_LENGTH_MAX = 300
STEPS_MAX = 100_000


class JsonSchema(Definition):
    type = SchemaType.JSON_SCHEMA

    def __init__(self, text: str) -> None:
        self.value = load_json(text)
        self._compiled = _compile(self.value)
        super().__init__(text, json.dumps(self.value, sort_keys=True, separators=(",", ":")))

    def backward(self, old: Definition) -> list[str]:
        assert isinstance(old, JsonSchema)
        return backward_problems(old.value, self.value)

    def forward(self, old: Definition) -> list[str]:
        assert isinstance(old, JsonSchema)
        return forward_problems(old.value, self.value)

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
            except ValueError as error:  # nested deeper than the engine supports, or not text
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
        steps = References(value).steps()
    except RecursionError:
        raise InvalidSchema(FIELD, "its parts refer to one another too deep") from None
    if steps > STEPS_MAX:
        raise InvalidSchema(FIELD, f"to check one value takes more than {STEPS_MAX} steps: its references multiply")
    try:
        return jsonschema_rs.validator_for(value, offline=True)
    except jsonschema_rs.ValidationError as error:
        where = "".join(f"/{part}" for part in error.instance_path)
        raise InvalidSchema(FIELD, f"{where or 'the schema'}: {error.message[:PROBLEM_LENGTH_MAX]}") from None
    except ValueError as error:
        raise InvalidSchema(FIELD, str(error)[:PROBLEM_LENGTH_MAX]) from None
