"""The messages of OTLP, and the descriptors by which `ptars` decodes them.

`AnyValue` holds lists and maps of `AnyValue`. Nested Arrow types cannot be recursive, so both become bytes here: fields
that are repeated, because `protobuf` merges several occurrences of a message, and that is what joined bytes mean.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

_ANY_VALUE = "AnyValue"
_NOT_OF_THESE_SIGNALS = {"KeyValue": {"key_strindex"}}
"""Fields of profiles only. `ptars` makes a column of each field, and skips what it does not know."""


def decoding_descriptor(descriptor: Any) -> Any:
    """Return the descriptor of a request in which lists and maps of values are bytes."""
    pool = DescriptorPool()
    added: set[str] = set()
    _add(descriptor.file, pool, added)
    return pool.FindMessageTypeByName(descriptor.full_name)


def _add(file: Any, pool: DescriptorPool, added: set[str]) -> None:
    if file.name in added:
        return
    added.add(file.name)
    for dependency in file.dependencies:
        _add(dependency, pool, added)
    changed = FileDescriptorProto()
    file.CopyToProto(changed)
    for message in changed.message_type:
        unused = _NOT_OF_THESE_SIGNALS.get(message.name, set())
        for field in [field for field in message.field if field.name in unused]:
            message.field.remove(field)
        if message.name == _ANY_VALUE:
            _without_recursion(message.field)
    pool.Add(changed)


def _without_recursion(fields: Any) -> None:
    for field in fields:
        if field.type == FieldDescriptorProto.TYPE_MESSAGE:
            field.type = FieldDescriptorProto.TYPE_BYTES
            field.label = FieldDescriptorProto.LABEL_REPEATED
            field.ClearField("type_name")
            field.ClearField("oneof_index")
