"""A group of parts as the payload of its frame: one Arrow message."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from frazil.core.rows import joined
from frazil.log.format import pack_rows
from frazil.log.group import Part
from frazil.log.producers import SentRows, sent_as_text
from frazil.log.single import SINGLE_BYTES_MAX, single_message


def encoded(group: Sequence[Part], sent: Sequence[SentRows], schema: pa.Schema, time_us: int) -> pa.Buffer:
    """The rows of all parts, in their order; `sent` are those of them that a producer numbered."""
    if len(group) == 1 and len(group[0].messages) == 1:
        payload, key, attributes, origin = group[0].messages[0]
        if key is None and attributes is None and origin is None and len(payload) <= SINGLE_BYTES_MAX:
            return pa.py_buffer(single_message(payload, time_us, time_us))
    rows = joined([part.rows(schema, time_us) for part in group])
    return pack_rows(rows, sent_as_text(sent)) if sent else pack_rows(rows)
