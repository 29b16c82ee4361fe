"""What a mover tells its owner, small: with many topics it is long, and says much the same of each."""

from __future__ import annotations

import json
import zlib
from typing import Any

from frazil.core.errors import InvalidInput

BYTES_MAX = 16 * 1024 * 1024
"""A status has some 600 bytes for each topic: room for more than twenty thousand."""
_QUICK = 1


def packed(told: dict[str, Any]) -> bytes:
    return zlib.compress(json.dumps(told).encode(), _QUICK)


def unpacked(body: bytes) -> bytes:
    """The JSON again; never more of it than is allowed, whatever the body would become."""
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(body, BYTES_MAX)
    except zlib.error as error:
        raise InvalidInput(f"the tell is not what zlib makes of JSON ({error})") from None
    if not inflater.eof:
        raise InvalidInput(f"the tell is cut, or has more than {BYTES_MAX} bytes")
    return text
