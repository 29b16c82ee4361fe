"""Encode a group of parts as the payload of its frame: one Arrow message."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from frazil.core.rows import joined
from frazil.log.format.fast_encode import small_batch, small_rows
from frazil.log.format.frames import pack_rows
from frazil.log.write.group import Part
from frazil.log.write.producers import SentRows, sent_as_text


def encoded(group: Sequence[Part], sent: Sequence[SentRows], schema: pa.Schema, time_us: int) -> pa.Buffer:
    """Encode the rows of all parts in order; `sent` are the rows that a producer numbered."""
    text = sent_as_text(sent) if sent else b""
    if messages := small_rows(group):
        return pa.py_buffer(small_batch(messages, time_us, text))
    return pack_rows(joined([part.rows(schema, time_us) for part in group]), text)
