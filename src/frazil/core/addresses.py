"""Addresses of doors: the `host:port` that other hosts use, and which hosts are this one alone."""

from __future__ import annotations

import ipaddress
import re

_ORIGIN = re.compile(r"https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
_HOST_AND_PORT = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[\w.-]+):([1-9]\d{0,4})")


def check_host_and_port(value: str, port: int) -> str:
    """Check `host:port`, with IPv6 addresses in brackets; `port` appears in the example of the error message."""
    found = _HOST_AND_PORT.fullmatch(value)
    if found is None or int(found[1]) > 65_535:
        raise ValueError(f"must be host:port, as in broker-1.example:{port} or [2001:db8::7]:{port}")
    return value


def check_origin(origin: str) -> None:
    """Check the origin of a page, as browsers send it."""
    if not _ORIGIN.fullmatch(origin):
        raise ValueError(f"{origin!r} is not an origin: write https://host or https://host:port, in lower case")


def is_loopback(host: str | None) -> bool:
    """Whether only this host reaches it: a loopback address, or `localhost`. No name is resolved."""
    if not host:
        return False
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
