"""Attributes that have columns of their own, beside their entries in the maps."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from frazil.core.errors import SchemaMismatch

TYPES = {"string": pa.string(), "int64": pa.int64(), "double": pa.float64(), "bool": pa.bool_()}
"""Types of lifted columns."""


class LiftedFrom(enum.StrEnum):
    RESOURCE = "resource"
    SCOPE = "scope"
    ITEM = "item"
    """The span, the log record or the point."""


@dataclass(frozen=True)
class Lifted:
    """An attribute that has its own column.

    A `string` column has the text of any value. The others have values of their own type only (`double` also has
    those of integers) and are null for all others.
    """

    source: LiftedFrom
    key: str
    column: str
    type: str = "string"

    @classmethod
    def parse(cls, text: str) -> Lifted:
        """Return what `str()` made a text of."""
        column, _, rest = text.partition("=")
        source, _, rest = rest.partition(":")
        key, _, kind = rest.rpartition(":")
        return cls(LiftedFrom(source), key, column, kind)

    def __str__(self) -> str:
        """Neither columns nor types have the signs between them. No other column of a table has a `=` in its name."""
        return f"{self.column}={self.source}:{self.key}:{self.type}"


def with_lifted(columns: pa.Schema, lifted: Sequence[Lifted]) -> pa.Schema:
    """Return the columns of a table, followed by those of lifted attributes."""
    taken = {name.casefold() for name in columns.names}
    for one in lifted:
        if one.type not in TYPES:
            raise SchemaMismatch(
                f"column {one.column!r}: the type {one.type!r} of a lifted attribute is not one of {', '.join(TYPES)}",
                field=one.column,
            )
        if not one.column or one.column.startswith("_") or one.column.casefold() in taken:
            raise SchemaMismatch(
                f"column {one.column!r}: the name of a lifted attribute is empty, taken or begins with '_'",
                field=one.column,
            )
        taken.add(one.column.casefold())
    return pa.schema([*columns, *(pa.field(one.column, TYPES[one.type]) for one in lifted)])
