"""Compress the mover's status report: with many topics it is long and repetitive."""

from __future__ import annotations

import json
import zlib
from typing import Any

from frazil.core.errors import InvalidInput

BYTES_MAX = 16 * 1024 * 1024
"""Size limit of a decompressed report: at about 600 bytes per topic, enough for twenty thousand topics."""
_QUICK = 1


def packed(report: dict[str, Any]) -> bytes:
    return zlib.compress(json.dumps(report).encode(), _QUICK)


def unpacked(body: bytes) -> bytes:
    """Decompress the JSON, up to the allowed size."""
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(body, BYTES_MAX)
    except zlib.error as error:
        raise InvalidInput(f"the status report is not zlib-compressed JSON ({error})") from None
    if not inflater.eof:
        raise InvalidInput(f"the status report is truncated, or has more than {BYTES_MAX} bytes")
    return text
