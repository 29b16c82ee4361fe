"""Encode a group of parts as the payload of its frame: one Arrow message."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from frazil.core.errors import BatchTooLarge
from frazil.core.rows import joined
from frazil.core.settings import MIB
from frazil.log.format.fast_encode import small_batch, small_rows
from frazil.log.format.frames import pack_rows
from frazil.log.write.group import Part
from frazil.log.write.producers import SentRows, sent_as_text

FRAME_BYTES_MAX = 256 * MIB
"""Rows of a group whose topic got more columns while they were queued."""


def encoded(group: Sequence[Part], sent: Sequence[SentRows], schema: pa.Schema, time_us: int) -> pa.Buffer:
    """Encode the rows of all parts in order; `sent` are the rows that a producer numbered."""
    text = sent_as_text(sent) if sent else b""
    if messages := small_rows(group):
        return pa.py_buffer(small_batch(messages, time_us, text))
    rows = [part.rows(schema, time_us) for part in group]
    if any(part.batch is not None and len(part.batch.schema) + 1 < len(schema) for part in group):
        _check_size(rows)
    return pack_rows(joined(rows), text)


def _check_size(rows: Sequence[pa.RecordBatch]) -> None:
    """Refuse rows that new columns of their topic make much larger, before all their nulls are written out."""
    size_bytes = sum(pa.ipc.get_record_batch_size(one) for one in rows)
    if size_bytes > FRAME_BYTES_MAX:
        raise BatchTooLarge(size_bytes, FRAME_BYTES_MAX)
