"""Values of any type (`AnyValue`) as text, and the kind of each."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from frazil.telemetry.decode.json_text import array_text, kvlist_text
from frazil.telemetry.decode.levels import lengths
from frazil.telemetry.decode.wire import NotCanonicalError

KINDS = ("string", "int", "bool", "double", "bytes", "array", "kvlist", "strindex", "empty", "repeated")
"""Names of the kinds. `strindex` belongs to profiles; `repeated` is a key that occurs several times."""
STRING, INT, BOOL, DOUBLE, BYTES, ARRAY, KVLIST, STRINDEX, EMPTY, REPEATED = range(len(KINDS))

_NAMES = pa.array(KINDS)
_BOOLS = pa.array(["false", "true"])


class Texts(NamedTuple):
    """Text and kind of each value."""

    texts: pa.StringArray
    kinds: np.ndarray


def texts_of(values: pa.StructArray) -> Texts:
    """Return the text of each value. Raise `NotCanonicalError` if one has several kinds at once."""
    strings = values.field("string_value")
    count = len(values)
    parts = _TextParts(count)
    if present := count - strings.null_count:
        parts.add(STRING, _present(strings), strings.drop_null() if present < count else strings)
    for kind, name in ((INT, "int_value"), (DOUBLE, "double_value"), (STRINDEX, "string_value_strindex")):
        child = values.field(name)
        if child.null_count < count:
            parts.add(kind, _present(child), child.drop_null().cast(pa.string()))
    bools = values.field("bool_value")
    if bools.null_count < count:
        parts.add(BOOL, _present(bools), _BOOLS.take(bools.drop_null().cast(pa.int8())))
    blobs = values.field("bytes_value")
    if blobs.null_count < count:
        parts.add(BYTES, _present(blobs), _texts_of_bytes(blobs.drop_null(), lambda blob: b64encode(blob).decode()))
    _add_nested(parts, ARRAY, values.field("array_value"), array_text)
    _add_nested(parts, KVLIST, values.field("kvlist_value"), kvlist_text)
    return parts.joined()


def types_of(kinds: np.ndarray) -> pa.StringArray:
    """Return the name of each kind, null for strings."""
    return _NAMES.take(pa.array(kinds, mask=kinds == STRING))


def names_of_kinds(kinds: np.ndarray) -> pa.StringArray:
    return _NAMES.take(pa.array(kinds))


def _present(child: pa.Array) -> np.ndarray:
    if not child.null_count:
        return np.arange(len(child))
    return np.flatnonzero(child.is_valid().to_numpy(zero_copy_only=False))


def _add_nested(parts: _TextParts, kind: int, messages: pa.ListArray, text: Callable[[bytes], str]) -> None:
    """Add arrays or maps: the elements of a list are the bytes of one message, in several parts if it was sent so."""
    found = messages.values
    if not len(found):
        return
    rows = np.flatnonzero(lengths(messages))
    if len(rows) < len(found):
        found = pa.array([b"".join(messages[row].as_py()) for row in rows.tolist()], pa.binary())
    parts.add(kind, rows, _texts_of_bytes(found, text))


def _texts_of_bytes(values: pa.BinaryArray, text: Callable[[bytes], str]) -> pa.StringArray:
    """Return the text of each value. The same bytes are decoded once."""
    encoded = values.dictionary_encode()
    texts = pa.array([text(value) for value in encoded.dictionary.to_pylist()], pa.string())
    return texts.take(encoded.indices)


class _TextParts:
    """Texts of several kinds, to be brought into the order of the values."""

    def __init__(self, count: int) -> None:
        self._kinds = np.full(count, EMPTY, np.uint8)
        self._place = np.zeros(count, np.int64)
        self._found: list[pa.StringArray] = []
        self._total = 0

    def add(self, kind: int, rows: np.ndarray, texts: pa.StringArray) -> None:
        self._kinds[rows] = kind
        self._place[rows] = np.arange(self._total, self._total + len(rows))
        self._found.append(texts)
        self._total += len(rows)

    def joined(self) -> Texts:
        count = len(self._kinds)
        empty = np.flatnonzero(self._kinds == EMPTY)
        if self._total + len(empty) != count:
            raise NotCanonicalError
        if len(self._found) == 1 and not len(empty):
            return Texts(self._found[0], self._kinds)
        self._place[empty] = self._total
        joined = pa.concat_arrays([*self._found, pa.array([""])])
        return Texts(joined.take(pa.array(self._place)), self._kinds)
