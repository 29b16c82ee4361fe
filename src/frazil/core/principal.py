"""The caller of a Node, as identified by a door."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller. Every public method of the Node takes one first, so that every call can be authorized.

    Names tell how the caller was identified: `key:ID`, `jwt:SUBJECT`, `cert:SUBJECT`.
    """

    name: str
    roles: tuple[str, ...] = ()
    """Roles that a token grants, beside the bindings of the name."""
    expires_us: int | None = None
    """When the credentials expire: checked at each call, also within a stream."""


LOCAL = Principal("local")
"""This process itself, or a program that can read the data folder. It may do everything."""
ANONYMOUS = Principal("anonymous")
"""A caller without credentials: every caller while security is off."""
