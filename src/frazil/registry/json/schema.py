"""JSON Schema, validated by the same engine as Danube's broker; nothing is fetched remotely.

The engine holds Python's lock: nothing else runs in this process while it checks a payload. So the work is estimated
before, and a payload that takes too much does not fit. Whether a payload fits takes the engine the estimated time. To
say why not, it looks into each alternative again at each level; that is left out where it would take too long.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs

from frazil.core.errors import InvalidSchema
from frazil.registry.definition import FIELD, Definition, Validator, load_json
from frazil.registry.json.compatibility import backward_problems, forward_problems
from frazil.registry.json.references import CheckCost, References, patterns_of
from frazil.registry.kinds import SchemaType

PROBLEM_LENGTH_MAX = 300
STEPS_MAX = 100_000
CHECK_STEPS_MAX = 20_000_000
"""Of one payload: about a second."""
BACKTRACKS_MAX = 10_000
"""Of one pattern in one text, about a millisecond. Only patterns that look around or refer back need any."""
PATTERNS_MAX = 1_000
PATTERN_BYTES_MAX = 256 * 1024
"""Compiled. The engine compiles all patterns at once: so it takes less than a second."""
_BYTES_OF_STEP = 32


class JsonSchema(Definition):
    type = SchemaType.JSON_SCHEMA

    def __init__(self, text: str) -> None:
        self.value = load_json(text)
        self._cost = _cost(self.value)
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
        compiled, cost = self._compiled, self._cost

        def problem(payload: bytes) -> str | None:
            steps = cost.steps * _values_at_most(payload)
            if steps > CHECK_STEPS_MAX:
                return f"may take {steps} steps to check, more than {CHECK_STEPS_MAX}: send smaller payloads"
            try:
                value = json.loads(payload, parse_constant=_no_constant)
            except RecursionError:
                return "is nested too deep"
            except ValueError as error:
                return f"is not JSON: {error}"
            try:
                if compiled.is_valid(value):
                    return None
                if not _can_be_explained(cost, steps, value):
                    return "does not fit the schema, which is too recursive to say why"
                compiled.validate(value)  # its first error: all of them could be as large as payload times schema
            except jsonschema_rs.ValidationError as error:
                where = "".join(f"/{part}" for part in error.instance_path)
                return f"{where or 'the payload'}: {error.message}"[:PROBLEM_LENGTH_MAX]
            except ValueError as error:  # nested deeper than the engine supports, or not text
                return str(error)[:PROBLEM_LENGTH_MAX]
            return "does not fit the schema"

        return problem


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _values_at_most(payload: bytes) -> int:
    """Return how many values a payload may have, where long texts count as several."""
    return 1 + sum(map(payload.count, (b",", b"[", b"{"))) + len(payload) // _BYTES_OF_STEP


def _can_be_explained(cost: CheckCost, steps: int, value: Any) -> bool:
    """Whether the engine finds the reason soon, although it begins a recursion again at each level."""
    level, found = [value], steps
    while level and found <= CHECK_STEPS_MAX:
        level = [
            part
            for one in level
            if isinstance(one, dict | list)
            for part in (one.values() if isinstance(one, dict) else one)
        ]
        found *= max(1, cost.returns)
    return found <= CHECK_STEPS_MAX


def _cost(value: Any) -> CheckCost:
    if not isinstance(value, dict | bool):
        raise InvalidSchema(FIELD, f"a JSON Schema is an object or a boolean, not {type(value).__name__}")
    try:
        found = References(value).cost()
    except RecursionError:
        raise InvalidSchema(FIELD, "its parts refer to one another too deep") from None
    if found.steps > STEPS_MAX:
        raise InvalidSchema(FIELD, f"to check one value takes more than {STEPS_MAX} steps: its references multiply")
    return found


def _compile(value: Any) -> Any:
    if (count := patterns_of(value)) > PATTERNS_MAX:
        raise InvalidSchema(FIELD, f"has {count} patterns, and may have {PATTERNS_MAX}")
    patterns = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACKS_MAX, size_limit=PATTERN_BYTES_MAX)
    try:
        return jsonschema_rs.validator_for(value, offline=True, pattern_options=patterns)
    except jsonschema_rs.ValidationError as error:
        where = "".join(f"/{part}" for part in error.instance_path)
        raise InvalidSchema(FIELD, f"{where or 'the schema'}: {error.message[:PROBLEM_LENGTH_MAX]}") from None
    except ValueError as error:
        raise InvalidSchema(FIELD, str(error)[:PROBLEM_LENGTH_MAX]) from None
