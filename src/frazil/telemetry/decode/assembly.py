"""Puts columns together: batches of tables, and lists of structs."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa


def batch_of(columns: Mapping[str, pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of the columns of a table."""
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def lists_of(lists: pa.ListArray, element: pa.StructType, columns: Mapping[str, pa.Array]) -> pa.ListArray:
    """Return lists of the same lengths as `lists`, whose elements have these columns."""
    fields = [element.field(index) for index in range(element.num_fields)]
    structs = pa.StructArray.from_arrays([columns[field.name] for field in fields], fields=fields)
    return pa.ListArray.from_arrays(lists.offsets, structs)
