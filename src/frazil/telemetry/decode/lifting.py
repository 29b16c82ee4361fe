"""Columns of lifted attributes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from frazil.telemetry.decode.attributes import Attributes
from frazil.telemetry.decode.values import BOOL, DOUBLE, INT
from frazil.telemetry.schemas.lifted import TYPES, Lifted

_KINDS = {"int64": (INT,), "double": (INT, DOUBLE), "bool": (BOOL,)}
"""Kinds of values that a column of a type takes."""


def lifted_column(attributes: Attributes, one: Lifted) -> pa.Array:
    """Return the value of the attribute for each owner, null where it has none or one of another type."""
    entries = attributes.entries_of(one.key)
    fits = entries >= 0
    if one.type in _KINDS and len(attributes.kinds):
        fits &= np.isin(attributes.kinds[entries], _KINDS[one.type])
    texts = attributes.texts.take(pa.array(np.where(fits, entries, 0), mask=~fits))
    return texts if one.type == "string" else texts.cast(TYPES[one.type])
