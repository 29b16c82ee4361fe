"""Decodes export requests into rows of tables.

wire.py         bytes → nested Arrow; requests that are not valid Protobuf are set apart
levels.py       which resource, scope and request each item belongs to
values.py       values of attributes → text and kind
attributes.py   lists of keys and values → maps
traces.py …     the columns of each table
"""

from __future__ import annotations

from frazil.telemetry.decode.decoding import Decoded, decode, decode_parts

__all__ = ["Decoded", "decode", "decode_parts"]
