"""The interface of every schema type, and the simple types that need no definition."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from frazil.core.errors import InvalidSchema
from frazil.registry.kinds import CompatibilityMode, SchemaType

DEFINITION_BYTES_MAX = 256 * 1024
DEPTH_MAX = 128
"""Nesting limit of a definition, or of the payload of a recursive one: the stack is finite."""
FIELD = "schema_definition"

Validator = Callable[[bytes], str | None]
"""Returns None if the payload is valid, else the reason. Never raises."""


class Definition(ABC):
    """A parsed schema. `text` is the definition as registered."""

    type: ClassVar[SchemaType]

    def __init__(self, text: str, canonical: str | bytes) -> None:
        """Two definitions of a type are equal if their canonical forms are."""
        self.text = text
        content = canonical if isinstance(canonical, bytes) else canonical.encode()
        self.fingerprint = "sha256:" + hashlib.sha256(f"{self.type}\n".encode() + content).hexdigest()

    @abstractmethod
    def backward(self, old: Definition) -> list[str]:
        """Return why this schema cannot read the data of `old`, which has the same type."""

    @abstractmethod
    def forward(self, old: Definition) -> list[str]:
        """Return why `old`, which has the same type, cannot read the data of this schema."""

    @abstractmethod
    def validator(self) -> Validator:
        """Compile the validator; the caller keeps it."""

    @abstractmethod
    def tagged(self) -> Any:
        """The value, under the tag of its type, with which the protocol returns a definition."""

    def extra(self) -> dict[str, str]:
        """Compiled data stored with the text, so that it need not be rebuilt."""
        return {}

    def tagged_json(self) -> bytes:
        return json.dumps(self.tagged(), ensure_ascii=False, separators=(",", ":")).encode()


def incompatibilities(new: Definition, old: Definition, mode: CompatibilityMode) -> list[str]:
    """Return every reason why `new` may not follow `old`; empty if it may."""
    if mode is CompatibilityMode.NONE or new.fingerprint == old.fingerprint:
        return []
    if new.type is not old.type:
        return [f"the type of the schema changed from {old.type} to {new.type}"]
    reasons = [f"backward: {reason}" for reason in new.backward(old)] if mode.is_backward else []
    if mode.is_forward:
        reasons += [f"forward: {reason}" for reason in new.forward(old)]
    return reasons


def decode(content: bytes) -> str:
    """Decode the text of a definition; refuses oversized or non-text content before parsing."""
    if not isinstance(content, bytes):
        raise InvalidSchema(FIELD, f"must be bytes, not {type(content).__name__}")
    if not content:
        raise InvalidSchema(FIELD, "is empty")
    if len(content) > DEFINITION_BYTES_MAX:
        raise InvalidSchema(FIELD, f"has {len(content)} bytes, and at most {DEFINITION_BYTES_MAX} are kept")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InvalidSchema(FIELD, f"is not UTF-8 at byte {error.start}") from None


def load_json(text: str) -> Any:
    """Parse strict JSON: no NaN, no duplicate names, limited nesting."""
    try:
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except RecursionError:
        raise InvalidSchema(FIELD, f"is nested deeper than {DEPTH_MAX}") from None
    except ValueError as error:
        raise InvalidSchema(FIELD, f"is not JSON: {error}") from None
    if not _is_shallow(value, DEPTH_MAX):
        raise InvalidSchema(FIELD, f"is nested deeper than {DEPTH_MAX}")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r:.80} is there twice")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _is_shallow(value: Any, depth: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return depth > 0 and all(_is_shallow(each, depth - 1) for each in inner)


class Plain(Definition):
    """A type without a definition; any definition sent for it is ignored."""

    tag: ClassVar[str]

    def __init__(self) -> None:
        super().__init__("", "")

    def backward(self, old: Definition) -> list[str]:  # noqa: ARG002 - all of a type are the same
        return []

    def forward(self, old: Definition) -> list[str]:  # noqa: ARG002
        return []

    def tagged(self) -> Any:
        return self.tag


class BytesSchema(Plain):
    type = SchemaType.BYTES
    tag = "Bytes"

    def validator(self) -> Validator:
        return lambda _: None


class StringSchema(Plain):
    type = SchemaType.STRING
    tag = "String"

    def validator(self) -> Validator:
        return _text_problem


class NumberSchema(Plain):
    """Four or eight bytes: the protocol does not say which number type."""

    type = SchemaType.NUMBER
    tag = "Number"

    def validator(self) -> Validator:
        return lambda payload: None if len(payload) in (4, 8) else f"a number has 4 or 8 bytes, not {len(payload)}"


def _text_problem(payload: bytes) -> str | None:
    try:
        payload.decode()
    except UnicodeDecodeError as error:
        return f"is not UTF-8 at byte {error.start}"
    return None
