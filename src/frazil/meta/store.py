"""The port to a store of small facts: keys like paths, values of bytes, changed only by who knows the present one.

Every change gets a revision above all before it, in the whole store. So a key that was deleted and made again never has
a revision that it had before, and whoever holds an old one changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from frazil.core.errors import InvalidInput

ABSENT = 0
"""The revision of a key that is not there."""

KEY_BYTES_MAX = 1024
VALUE_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Entry:
    key: str
    value: bytes
    revision: int


class MetaStore(Protocol):
    """Used from several threads and processes. What a call has returned is durable."""

    def get(self, key: str) -> Entry | None: ...

    def put_if(self, key: str, value: bytes, revision: int) -> int | None:
        """Set the value if the key still has that revision (`ABSENT`: is not there).

        Returns the new revision, or None if another was quicker; then nothing is changed.
        """
        ...

    def delete(self, key: str, revision: int) -> bool:
        """Remove the key if it still has that revision; whether it was removed."""
        ...

    def list(self, prefix: str) -> list[Entry]:
        """All entries whose keys begin so, sorted by key, as they were at one moment."""
        ...

    def close(self) -> None: ...


def check_key(key: str) -> None:
    if not isinstance(key, str) or not key.startswith("/") or "\0" in key or len(key.encode()) > KEY_BYTES_MAX:
        raise InvalidInput(f"key: must begin with / and have at most {KEY_BYTES_MAX} bytes, not {key!r:.80}")


def check_value(value: bytes) -> None:
    if not isinstance(value, bytes):
        raise InvalidInput(f"value: must be bytes, not {type(value).__name__}")
    if len(value) > VALUE_BYTES_MAX:
        raise InvalidInput(f"value: has {len(value)} bytes, and at most {VALUE_BYTES_MAX} are kept under one key")
