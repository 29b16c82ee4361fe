"""Avro schemas, parsed by Apache's library, which is strict about names and unions; defaults are checked here.

The canonical form is Avro's, but keeps defaults, aliases and other attributes: they affect compatibility, so a schema
that differs in them is another version. Documentation and the order of attributes do not count.
"""

from __future__ import annotations

import json
import math
from typing import Any

import avro.errors
import avro.schema

from frazil.core.errors import InvalidSchema
from frazil.registry.avro.compatibility import HIDDEN_LOGICAL, full_aliases, reading_problems
from frazil.registry.avro.file import MAGIC, file_validator
from frazil.registry.avro.payload import PayloadMismatch, Walk, compile_walk, value_validator
from frazil.registry.definition import FIELD, Definition, Validator, decode, load_json
from frazil.registry.kinds import SchemaType

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
LOGICAL = "logicalType"


class AvroSchema(Definition):
    type = SchemaType.AVRO

    def __init__(self, text: str) -> None:
        value = load_json(text)
        self.root = _parse(value)
        try:
            _check(self.root, set())
            self.walk = compile_walk(self.root)
            canonical = json.dumps(_canonical(self.root, set()), sort_keys=True, separators=(",", ":"))
        except RecursionError:
            raise InvalidSchema(FIELD, "its types refer to one another too deep") from None
        super().__init__(text, canonical)

    def backward(self, old: Definition) -> list[str]:
        assert isinstance(old, AvroSchema)
        return reading_problems(reader=self.root, writer=old.root)

    def forward(self, old: Definition) -> list[str]:
        assert isinstance(old, AvroSchema)
        return reading_problems(reader=old.root, writer=self.root)

    def validator(self) -> Validator:
        of_value, of_file = value_validator(self.walk), file_validator(self._walk_of)

        def problem(payload: bytes) -> str | None:
            if payload[: len(MAGIC)] != MAGIC:
                return of_value(payload)
            problem = of_file(payload)
            return None if problem is None or of_value(payload) is None else problem

        return problem

    def _walk_of(self, text: bytes) -> Walk:
        """Return the walk for the schema that wrote a file, which this schema must be able to read."""
        try:
            writer = AvroSchema(decode(text))
        except InvalidSchema as error:
            raise PayloadMismatch(f"is a file whose schema {error.reason}") from None
        if reasons := reading_problems(reader=self.root, writer=writer.root):
            raise PayloadMismatch(f"is a file of another schema: {reasons[0]}")
        return writer.walk

    def tagged(self) -> Any:
        return {"Avro": {"raw_schema": self.text, "fingerprint": self.fingerprint}}


def _parse(value: Any) -> avro.schema.Schema:
    try:
        return avro.schema.parse(json.dumps(_hide_logical(value)))
    except RecursionError:
        raise InvalidSchema(FIELD, "its types are nested too deep") from None
    except (avro.errors.AvroException, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidSchema(FIELD, f"is not an Avro schema: {str(error) or type(error).__name__:.300}") from None


def _hide_logical(value: Any) -> Any:
    if isinstance(value, list):
        return [_hide_logical(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        HIDDEN_LOGICAL if name == LOGICAL else name: part if name == "default" else _hide_logical(part)
        for name, part in value.items()
    }


def _check(schema: Any, seen: set[str]) -> None:
    """Refuse what the library accepts: types of protocols, and defaults that do not match their type."""
    kind = schema.type
    _check_aliases(schema.props)
    if kind == "union":
        for branch in schema.schemas:
            _check(branch, seen)
    elif kind == "array":
        _check(schema.items, seen)
    elif kind == "map":
        _check(schema.values, seen)
    elif kind == "record":
        if schema.fullname in seen:
            return
        seen.add(schema.fullname)
        for field in schema.fields:
            _check_aliases(field.props)
            _check(field.type, seen)
            if field.has_default and not _Default().is_of(field.default, field.type):
                shown = json.dumps(field.default)
                raise InvalidSchema(
                    FIELD, f"the default {shown:.80} of field {field.name} of {schema.fullname} is not of its type"
                )
    elif kind not in PRIMITIVES and kind not in ("enum", "fixed"):
        raise InvalidSchema(FIELD, f"{kind} is not a type of data")


def _check_aliases(props: Any) -> None:
    aliases = props.get("aliases")
    if aliases is not None and not (isinstance(aliases, list) and all(isinstance(each, str) for each in aliases)):
        raise InvalidSchema(FIELD, f"aliases must be a list of names, not {json.dumps(aliases):.80}")


class _Default:
    """Whether a JSON value is a valid default of a type.

    Each part is compared with each record once; otherwise branches of nested unions would be tried repeatedly.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], bool] = {}

    def is_of(self, value: Any, schema: Any) -> bool:
        kind = schema.type
        if kind == "union":
            return any(self.is_of(value, branch) for branch in schema.schemas)
        if kind == "array":
            return isinstance(value, list) and all(self.is_of(each, schema.items) for each in value)
        if kind == "map":
            return isinstance(value, dict) and all(self.is_of(each, schema.values) for each in value.values())
        if kind == "record":
            return isinstance(value, dict) and self._is_of_record(value, schema)
        if kind == "enum":
            return value in schema.symbols
        if kind == "fixed":
            return _is_bytes(value) and len(value) == schema.size
        return _is_primitive(value, kind)

    def _is_of_record(self, value: dict[str, Any], schema: Any) -> bool:
        key = (id(value), schema.fullname)  # the schema holds the value, so its id stays unique
        if key not in self._known:
            self._known[key] = all(
                self.is_of(value[field.name], field.type) if field.name in value else field.has_default
                for field in schema.fields
            )
        return self._known[key]


def _is_primitive(value: Any, kind: str) -> bool:
    if kind == "null":
        return value is None
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "string":
        return isinstance(value, str)
    if kind == "bytes":
        return _is_bytes(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if kind in ("float", "double"):
        return math.isfinite(value)
    bits = 31 if kind == "int" else 63
    return isinstance(value, int) and -(1 << bits) <= value < 1 << bits


def _is_bytes(value: Any) -> bool:
    return isinstance(value, str) and all(ord(character) < 256 for character in value)


def _canonical(schema: Any, seen: set[str]) -> Any:
    kind = schema.type
    if kind == "union":
        return [_canonical(branch, seen) for branch in schema.schemas]
    form = {name: value for name, value in schema.other_props.items() if name != "doc"}
    if kind in PRIMITIVES:
        return form | {"type": kind} if form else kind
    form["type"] = kind
    if kind == "array":
        return form | {"items": _canonical(schema.items, seen)}
    if kind == "map":
        return form | {"values": _canonical(schema.values, seen)}
    if schema.fullname in seen:
        return schema.fullname
    seen.add(schema.fullname)
    form["name"] = schema.fullname
    if aliases := full_aliases(schema):
        form["aliases"] = sorted(aliases)
    if kind == "enum":
        return form | {"symbols": list(schema.symbols)}
    if kind == "fixed":
        return form | {"size": schema.size}
    return form | {"fields": [_canonical_field(field, seen) for field in schema.fields]}


def _canonical_field(field: Any, seen: set[str]) -> dict[str, Any]:
    form = {name: value for name, value in field.other_props.items() if name != "doc"}
    form |= {"name": field.name, "type": _canonical(field.type, seen)}
    if aliases := field.props.get("aliases"):
        form["aliases"] = sorted(aliases)
    if field.props.get("order"):
        form["order"] = field.props["order"]
    return form | {"default": field.default} if field.has_default else form
