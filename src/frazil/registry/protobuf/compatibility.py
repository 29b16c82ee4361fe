"""Whether one Protocol Buffers message reads everything another can write: by field numbers, types and labels.

Field names do not matter, nor do fields that only one side has, unless they are required. Types match within the groups
that have the same wire format, as listed in the language guide.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor

_NAMES = {getattr(FieldDescriptor, name): name[5:].lower() for name in dir(FieldDescriptor) if name.startswith("TYPE_")}
_GROUPS = (
    {"int32", "int64", "uint32", "uint64", "bool", "enum"},
    {"sint32", "sint64"},
    {"fixed32", "sfixed32"},
    {"fixed64", "sfixed64"},
)
_MESSAGES = frozenset({"message", "group"})
_WHOLE = frozenset({"string", "bytes", "message", "group"})
"""Types for which a single value and a list of one have the same encoding."""


def reading_problems(reader: Any, writer: Any) -> list[str]:
    """Return the problems, each with the path of its field; empty if the reader reads everything."""
    if reader.full_name != writer.full_name:
        return [f"the first message is {reader.full_name}, and cannot read {writer.full_name}"]
    look = _MessageComparison()
    try:
        look.at(reader, writer, "")
    except RecursionError:
        look.reasons.append("the messages refer to one another too deep to be compared")
    return list(dict.fromkeys(look.reasons))


class _MessageComparison:
    def __init__(self) -> None:
        self.reasons: list[str] = []
        self._seen: set[tuple[str, str]] = set()

    def at(self, reader: Any, writer: Any, path: str) -> None:
        pair = (reader.full_name, writer.full_name)
        if pair in self._seen:
            return
        self._seen.add(pair)
        written = writer.fields_by_number
        for number, field in sorted(reader.fields_by_number.items()):
            where = f"{path}.{field.name}" if path else f"field {field.name}"
            where_number = f"{where} = {number}"
            if number in written:
                self._field(field, written[number], where, where_number)
            if field.is_required and not (number in written and written[number].is_required):
                self.reasons.append(f"{where_number}: is required, and may be missing from what was written")
        self._oneofs(reader, written, path)

    def _field(self, reader: Any, writer: Any, where: str, where_number: str) -> None:
        reads, wrote = _NAMES[reader.type], _NAMES[writer.type]
        if _is_map(reader) != _is_map(writer):
            self.reasons.append(f"{where_number}: {_shown(reader)} cannot read {_shown(writer)}")
        elif _is_map(reader):
            for entry in (1, 2):
                self._field(
                    reader.message_type.fields_by_number[entry],
                    writer.message_type.fields_by_number[entry],
                    f"{where}{{}}",
                    where_number,
                )
        elif not _reads_type(reader, writer, reads, wrote) or not _reads_label(reader, writer, wrote):
            self.reasons.append(f"{where_number}: {_shown(reader)} cannot read {_shown(writer)}")
        elif reads in _MESSAGES and wrote in _MESSAGES:
            self.at(reader.message_type, writer.message_type, where)

    def _oneofs(self, reader: Any, written: Any, path: str) -> None:
        """Check oneofs: only the last field of a oneof is read, so a writer may not write two of
        its fields together.
        """
        for oneof in reader.oneofs:
            known = [written[field.number] for field in oneof.fields if field.number in written]
            if len({_oneof_of(field) for field in known}) > 1:
                names = ", ".join(field.name for field in known)
                at = f"{path}: " if path else ""
                self.reasons.append(f"{at}oneof {oneof.name} reads only one of the fields {names}")


def _oneof_of(field: Any) -> Any:
    oneof = field.containing_oneof
    return field.number if oneof is None else oneof.name


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _reads_type(reader: Any, writer: Any, reads: str, wrote: str) -> bool:
    if reads == wrote:
        return reads not in _MESSAGES or reader.message_type.full_name == writer.message_type.full_name
    return (reads, wrote) == ("bytes", "string") or any(reads in group and wrote in group for group in _GROUPS)


def _reads_label(reader: Any, writer: Any, wrote: str) -> bool:
    if reader.is_repeated == writer.is_repeated:
        return True
    return bool(reader.is_repeated) and wrote in _WHOLE


def _shown(field: Any) -> str:
    if _is_map(field):
        key, value = (_shown(field.message_type.fields_by_number[entry]) for entry in (1, 2))
        return f"map<{key}, {value}>"
    kind = _NAMES[field.type]
    name = field.message_type.full_name if kind in _MESSAGES else field.enum_type.full_name if kind == "enum" else kind
    return f"repeated {name}" if field.is_repeated else str(name)
