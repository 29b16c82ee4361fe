"""A group of parts as the payload of its frame: one Arrow message."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from frazil.core.rows import joined
from frazil.log.format import pack_rows
from frazil.log.group import Part
from frazil.log.producers import SentRows, sent_as_text
from frazil.log.small import small_batch, small_rows


def encoded(group: Sequence[Part], sent: Sequence[SentRows], schema: pa.Schema, time_us: int) -> pa.Buffer:
    """The rows of all parts, in their order; `sent` are those of them that a producer numbered."""
    text = sent_as_text(sent) if sent else b""
    if messages := small_rows(group):
        return pa.py_buffer(small_batch(messages, time_us, text))
    return pack_rows(joined([part.rows(schema, time_us) for part in group]), text)
