"""A fix for PyIceberg 0.12, which turns a null list or map of structs into an empty one on read and write.

It rebuilds such columns from offsets and values without the null mask. So its visitor is replaced by one that keeps the
mask, in every process that imports the lake.
"""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.io.pyarrow import ArrowProjectionVisitor
from pyiceberg.types import ListType, MapType

from frazil.lake.pyiceberg_private import replace_projection_visitor


class _NullsKept(ArrowProjectionVisitor):
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
    """Copy the offsets: a mask cannot be combined with a slice."""
    return pa.array(array.offsets.to_numpy(zero_copy_only=False))


def keep_nulls() -> None:
    replace_projection_visitor(_NullsKept)
