"""Parse a position in a topic: start, end, an offset, @TIME."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from frazil.core.errors import InvalidInput

if TYPE_CHECKING:
    from frazil.log.read.positions import Start

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def parse_start(text: str, option: str = "-o") -> Start:
    if text == "start":
        return "earliest"
    if text == "end":
        return "latest"
    if re.fullmatch(r"\d{1,19}", text, re.ASCII):
        return int(text)
    if text.startswith("@"):
        return parse_time(text[1:], option)
    raise InvalidInput(f"{option}: {text!r} is not start, end, an offset or @TIME")


def parse_time(text: str, option: str) -> datetime:
    try:
        if re.fullmatch(r"\d{1,19}", text, re.ASCII):
            return _EPOCH + timedelta(milliseconds=int(text))
        time = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"{option}: @{text} is neither ISO 8601, as @2026-05-01T12:00:00Z, nor ms since 1970"
        ) from None
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)
