"""An address by which other hosts reach a door."""

from __future__ import annotations

import re

_HOST_AND_PORT = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[\w.-]+):([1-9]\d{0,4})")


def check_host_and_port(value: str, port: int) -> str:
    """`host:port`, with an IPv6 address in brackets; `port` is for the example of who gets it wrong."""
    found = _HOST_AND_PORT.fullmatch(value)
    if found is None or int(found[1]) > 65_535:
        raise ValueError(f"must be host:port, as in broker-1.example:{port} or [2001:db8::7]:{port}")
    return value
