"""Attributes (lists of keys and values) as maps of text, and maps of the types of those that are not strings."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.telemetry.decode.json_text import BYTES as BYTES_TAG
from frazil.telemetry.decode.json_text import STRINDEX as STRINDEX_TAG
from frazil.telemetry.decode.json_text import double_of, dumped
from frazil.telemetry.decode.values import (
    BYTES,
    DOUBLE,
    EMPTY,
    REPEATED,
    STRINDEX,
    STRING,
    Texts,
    names_of_kinds,
    texts_of,
)


@dataclass(frozen=True)
class Attributes:
    """The attributes of each owner: entries from `starts[i]` to `starts[i + 1]`, with unique keys."""

    starts: np.ndarray
    keys: pa.StringArray
    texts: pa.StringArray
    kinds: np.ndarray

    def columns(self, name: str) -> dict[str, pa.MapArray]:
        """Return the map of texts and the map of types."""
        texts = pa.MapArray.from_arrays(pa.array(self.starts), self.keys, self.texts)
        return {name: texts, f"{name}_types": self._types()}

    def _types(self) -> pa.MapArray:
        other = self.kinds != STRING
        before = np.zeros(len(other) + 1, np.int32)
        np.cumsum(other, out=before[1:])
        entries = np.flatnonzero(other)
        keys = self.keys.take(pa.array(entries))
        names = names_of_kinds(self.kinds[entries])
        return pa.MapArray.from_arrays(pa.array(before[self.starts]), keys, names)

    def entries_of(self, key: str) -> np.ndarray:
        """Return the entry with this key for each owner, -1 where there is none."""
        found = np.full(len(self.starts) - 1, -1)
        entries = np.flatnonzero(pc.equal(self.keys, key).to_numpy(zero_copy_only=False))
        found[np.searchsorted(self.starts, entries, "right") - 1] = entries
        return found


def attributes_of(lists: pa.ListArray) -> Attributes:
    """Return attributes with unique keys: all values of a repeated key become one, a JSON array."""
    starts = lists.offsets.to_numpy()
    keys = lists.values.field("key")
    values = texts_of(lists.values.field("value"))
    repeated = _repeated(starts, keys)
    if repeated:
        return _with_unique_keys(starts, keys, values, repeated)
    return Attributes(starts, keys, values.texts, values.kinds)


def _repeated(starts: np.ndarray, keys: pa.StringArray) -> list[np.ndarray]:
    """Return groups of entries that have the same owner and the same key, in the order of the wire."""
    encoded = keys.dictionary_encode()
    count, distinct = len(starts) - 1, len(encoded.dictionary)
    kind = np.int32 if count * distinct < 2**31 else np.int64  # 32 bits are sorted faster
    pairs = np.repeat((np.arange(count) * distinct).astype(kind), np.diff(starts)) + encoded.indices.to_numpy()
    found = np.sort(pairs)
    same = found[1:] == found[:-1]
    if not same.any():
        return []
    follows = np.r_[False, same]
    members = follows | np.r_[same, False]
    order = np.argsort(pairs, kind="stable")
    return np.split(order[members], np.flatnonzero(~follows[members])[1:])


def _with_unique_keys(
    starts: np.ndarray, keys: pa.StringArray, values: Texts, repeated: Sequence[np.ndarray]
) -> Attributes:
    """Return attributes in which the first entry of each group has the values of all of them."""
    entries = np.concatenate(repeated)
    found = zip(values.texts.take(pa.array(entries)).to_pylist(), values.kinds[entries].tolist(), strict=True)
    members = (_json(text, kind) for text, kind in found)
    joined = [f"[{','.join(itertools.islice(members, len(group)))}]" for group in repeated]
    kinds = values.kinds.copy()
    kept = np.ones(len(keys), bool)
    kept[entries] = False
    firsts = np.array([group[0] for group in repeated])
    kept[firsts] = True
    kinds[firsts] = REPEATED
    place = np.arange(len(keys))
    place[firsts] = np.arange(len(keys), len(keys) + len(joined))
    before = np.zeros(len(keys) + 1, np.int32)
    np.cumsum(kept, out=before[1:])
    texts = pa.concat_arrays([values.texts, pa.array(joined, pa.string())])
    return Attributes(before[starts], keys.filter(pa.array(kept)), texts.take(pa.array(place[kept])), kinds[kept])


def _json(text: str, kind: int) -> str:
    """Return the JSON of a value: that of numbers, booleans, arrays and maps is their text."""
    match kind:
        case _ if kind == STRING:
            return dumped(text)
        case _ if kind == DOUBLE:
            return dumped(double_of(float(text)))
        case _ if kind == BYTES:
            return dumped({BYTES_TAG: text})
        case _ if kind == STRINDEX:
            return dumped({STRINDEX_TAG: int(text)})
        case _ if kind == EMPTY:
            return "null"
        case _:
            return text
