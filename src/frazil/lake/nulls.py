"""What PyIceberg 0.12 loses when it writes or reads: a null list or map of structs comes out empty.

It rebuilds such columns from offsets and values and forgets which were null. So its visitor is replaced by one that
remembers, in every process that imports the lake.
"""

from __future__ import annotations

import pyarrow as pa
import pyiceberg.io.pyarrow as pyiceberg_arrow
from pyiceberg.types import ListType, MapType

_Visitor = pyiceberg_arrow.ArrowProjectionVisitor


class _NullsKept(_Visitor):
    def list(self, list_type: ListType, list_array: pa.Array | None, value_array: pa.Array | None) -> pa.Array | None:
        found = super().list(list_type, list_array, value_array)
        if found is None or list_array is None or found.null_count == list_array.null_count:
            return found
        return type(found).from_arrays(_offsets(found), found.values, found.type, mask=list_array.is_null())

    def map(
        self, map_type: MapType, map_array: pa.Array | None, key_result: pa.Array | None, value_result: pa.Array | None
    ) -> pa.Array | None:
        found = super().map(map_type, map_array, key_result, value_result)
        if found is None or map_array is None or found.null_count == map_array.null_count:
            return found
        return pa.MapArray.from_arrays(_offsets(found), found.keys, found.items, found.type, mask=map_array.is_null())


def _offsets(array: pa.Array) -> pa.Array:
    """As an array of their own: a mask does not go with a slice."""
    return pa.array(array.offsets.to_numpy(zero_copy_only=False))


def keep_nulls() -> None:
    pyiceberg_arrow.ArrowProjectionVisitor = _NullsKept  # type: ignore[misc]
