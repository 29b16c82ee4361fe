"""Whether a reader's schema reads everything a writer's schema can write, by the resolution rules of the Avro spec.

Apache's library has a check of its own, but it names no fields, accepts aliases only in full, and keeps assumptions
about recursive types from a union branch that then failed.

This check never backtracks: it chooses a branch by what the specification calls a match. So every comparison must hold,
each pair of records is compared once, and recursive types terminate.
"""

from __future__ import annotations

from typing import Any

_PROMOTIONS = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
"""Reader types that also read a writer's type."""

HIDDEN_LOGICAL = "logical-type"
"""The library warns of unknown logical types; under this name they are plain attributes."""

_NAMED = frozenset({"record", "enum", "fixed"})


def reading_problems(reader: Any, writer: Any) -> list[str]:
    """Return the problems, each with the path of its field; empty if the reader reads everything."""
    look = _SchemaComparison()
    try:
        look.at(reader, writer, "")
    except RecursionError:
        look.reasons.append("the types refer to one another too deep to be compared")
    return list(dict.fromkeys(look.reasons))


def full_aliases(schema: Any) -> frozenset[str]:
    """Return the aliases of a named type, fully qualified."""
    space = schema.fullname.rpartition(".")[0]
    aliases = schema.props.get("aliases") or ()
    return frozenset(alias if "." in alias or not space else f"{space}.{alias}" for alias in aliases)


class _SchemaComparison:
    def __init__(self) -> None:
        self.reasons: list[str] = []
        self._seen: set[tuple[str, str]] = set()

    def at(self, reader: Any, writer: Any, path: str) -> None:
        if writer.type == "union":
            for branch in writer.schemas:
                self.at(reader, branch, path)
        elif reader.type == "union":
            self._by_branch(reader, writer, path)
        elif reader.type != writer.type:
            if reader.type not in _PROMOTIONS.get(writer.type, ()):
                self._add(path, f"{_shown(reader)} cannot read {_shown(writer)}")
        elif _decimal(reader) != _decimal(writer) and None not in (_decimal(reader), _decimal(writer)):
            self._add(path, f"{_shown_decimal(reader)} cannot read {_shown_decimal(writer)}")
        elif reader.type == "array":
            self.at(reader.items, writer.items, f"{path}[]")
        elif reader.type == "map":
            self.at(reader.values, writer.values, f"{path}{{}}")
        elif reader.type in _NAMED:
            self._named(reader, writer, path)

    def _by_branch(self, reader: Any, writer: Any, path: str) -> None:
        """Choose the first matching branch, as the specification does; a full name is the better match."""
        matching = [branch for branch in reader.schemas if _matches(branch, writer)]
        if matching:
            self.at(min(matching, key=lambda branch: _distance(branch, writer)), writer, path)
        else:
            self._add(path, f"no branch of the union reads {_shown(writer)}")

    def _named(self, reader: Any, writer: Any, path: str) -> None:
        if not _is_name(reader, writer):
            self._add(path, f"{_shown(reader)} cannot read {_shown(writer)}: another name, and no alias")
        elif reader.type == "record":
            self._record(reader, writer, path)
        elif reader.type == "fixed":
            if reader.size != writer.size:
                self._add(path, f"{_shown(reader)} has {reader.size} bytes and cannot read {writer.size}")
        else:
            unknown = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
            if unknown and reader.props.get("default") is None:
                self._add(path, f"{_shown(reader)} does not know {', '.join(unknown)}, and has no default")

    def _record(self, reader: Any, writer: Any, path: str) -> None:
        pair = (reader.fullname, writer.fullname)
        if pair in self._seen:
            return
        self._seen.add(pair)
        written = {field.name: field for field in writer.fields}
        for field in reader.fields:
            where = f"{path}.{field.name}" if path else f"field {field.name}"
            names = (field.name, *(field.props.get("aliases") or ()))
            source = next((written[name] for name in names if name in written), None)
            if source is not None:
                self.at(field.type, source.type, where)
            elif not field.has_default:
                self._add(where, "is not in what was written, and has no default")

    def _add(self, path: str, text: str) -> None:
        self.reasons.append(f"{path}: {text}" if path else text)


def _matches(reader: Any, writer: Any) -> bool:
    if reader.type != writer.type:
        return reader.type in _PROMOTIONS.get(writer.type, ())
    if reader.type == "fixed" and reader.size != writer.size:
        return False
    return reader.type not in _NAMED or _is_name(reader, writer)


def _distance(reader: Any, writer: Any) -> int:
    if reader.type != writer.type:
        return 2
    return 0 if reader.type not in _NAMED or reader.fullname == writer.fullname else 1


def _is_name(reader: Any, writer: Any) -> bool:
    """Match names without their namespaces, but aliases only in full."""
    return _short(reader) == _short(writer) or writer.fullname in full_aliases(reader)


def _decimal(schema: Any) -> tuple[Any, Any] | None:
    """Return precision and scale, on which both sides must agree; None if the type is no decimal."""
    props = schema.other_props
    if schema.type not in ("bytes", "fixed") or props.get(HIDDEN_LOGICAL) != "decimal":
        return None
    return props.get("precision"), props.get("scale") or 0


def _shown_decimal(schema: Any) -> str:
    precision, scale = _decimal(schema) or (None, None)
    return f"decimal({precision}, {scale})"


def _short(schema: Any) -> str:
    return str(schema.fullname.rpartition(".")[2])


def _shown(schema: Any) -> str:
    return f"{schema.type} {schema.fullname}" if schema.type in _NAMED else str(schema.type)
