"""The tables of what could not be decoded. They are created when the first error occurs."""

from __future__ import annotations

import pyarrow as pa

from frazil.telemetry.schemas.shared import HEAD
from frazil.telemetry.signals import Signal

ERRORS = pa.schema(
    [
        *(field.with_nullable(True) if field.name == "_index" else field for field in HEAD),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("raw", pa.binary(), nullable=False),
    ]
)
"""`_index` is null for a whole request."""


def errors_table(signal: Signal) -> str:
    """Return the name of the table of errors of a signal."""
    return f"{signal.value}__errors"
