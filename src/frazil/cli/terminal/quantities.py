"""Parse sizes and durations: 10GiB, 7d."""

from __future__ import annotations

import re

from frazil.core.errors import InvalidInput

_NUMBER = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([A-Za-z]*)", re.ASCII)
_BYTES = {"": 1, "b": 1} | {
    name: step ** (power + 1)
    for power, letter in enumerate("kmgt")
    for name, step in ((letter, 1024), (f"{letter}ib", 1024), (f"{letter}b", 1000))
}
_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def parse_bytes(text: str, option: str) -> int:
    """Parse `512`, `64KiB`, `10GiB`, `1GB`; a bare letter means a power of 1024."""
    return _parse(text, option, _BYTES, "a size like 512MiB or 10GiB")


def parse_duration_ms(text: str, option: str) -> int:
    """Parse `500ms`, `30s`, `15m`, `12h`, `7d`, `2w`."""
    return _parse(text, option, _MS, "a time like 30s, 12h or 7d")


def _parse(text: str, option: str, units: dict[str, int], example: str) -> int:
    found = _NUMBER.fullmatch(text.strip())
    unit = units.get(found.group(2).lower()) if found else None
    amount = round(float(found.group(1)) * unit) if found and unit else 0
    if amount <= 0:
        raise InvalidInput(f"{option}: {text!r} is not {example}", option=option)
    return amount
