"""Validation of names and filters given by clients, and generation of their ids."""

from __future__ import annotations

import secrets
from collections.abc import Container, Sequence

from frazil.core.errors import InvalidInput
from frazil.meta.store import KEY_BYTES_MAX

NAME_LENGTH_MAX = 255
FILTERS_MAX, FILTER_LENGTH_MAX = 100, 255
ID_MAX = 2**63 - 1


def check_name(field: str, name: str) -> None:
    if not 0 < len(name) <= NAME_LENGTH_MAX:
        raise InvalidInput(f"{field}: must have 1 to {NAME_LENGTH_MAX} characters, not {len(name)}", field=field)


def check_fits(field: str, *keys: str) -> None:
    """Check names that are too long only in combination, as they are stored."""
    longest = max(len(key.encode()) for key in keys)
    if longest > KEY_BYTES_MAX:
        raise InvalidInput(
            f"{field}: with the names it belongs to it takes {longest} bytes, and at most {KEY_BYTES_MAX} can be "
            "stored; take shorter names",
            field=field,
        )


def check_filters(filters: Sequence[str]) -> None:
    if len(filters) > FILTERS_MAX or any(len(one) > FILTER_LENGTH_MAX for one in filters):
        raise InvalidInput(
            f"key_filters: at most {FILTERS_MAX} of {FILTER_LENGTH_MAX} characters each", field="key_filters"
        )


def new_id(known: Container[int]) -> int:
    """Return a random id that is not in use."""
    while True:
        number = 1 + secrets.randbelow(ID_MAX)
        if number not in known:
            return number
