"""Sorts the rows of a file as the table's sort order says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField
from pyiceberg.transforms import IdentityTransform


def sorting_columns(metadata: TableMetadata, rows: pa.Schema) -> tuple[str, ...]:
    """Return the columns of the table's sort order; none if it has none, or another one than ours.

    Another engine may have changed the order. Rows in no order are allowed in any table.
    """
    order = metadata.sort_order_by_id(metadata.default_sort_order_id)
    if order is None or not order.fields or not all(map(_is_ours, order.fields)):
        return ()
    schema = metadata.schema()
    names = tuple(schema.find_column_name(field.source_id) or "" for field in order.fields)
    return names if set(names) <= set(rows.names) else ()


def sorted_rows(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the rows sorted by these columns. Rows that are sorted already are not copied."""
    if not columns or not rows.num_rows:
        return rows
    keys = [(name, "ascending") for name in columns]
    indices = pc.sort_indices(rows.select(list(columns)), sort_keys=keys)
    if np.array_equal(indices.to_numpy(), np.arange(rows.num_rows)):
        return rows
    return rows.combine_chunks().take(indices)


def _is_ours(field: SortField) -> bool:
    return (
        isinstance(field.transform, IdentityTransform)
        and field.direction is SortDirection.ASC
        and field.null_order is NullOrder.NULLS_LAST
    )
