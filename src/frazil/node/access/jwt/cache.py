"""A bounded cache of verified tokens, by a keyed hash of their text: it holds no token."""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import OrderedDict
from typing import Generic, TypeVar

Holder = TypeVar("Holder")


class TokenCache(Generic[Holder]):
    """The holders of tokens that were verified; the least recently used is forgotten. Any thread may call it."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._salt = secrets.token_bytes(32)
        self._guard = threading.Lock()
        self._holders: OrderedDict[bytes, Holder] = OrderedDict()

    def get(self, token: str) -> Holder | None:
        name = self._name(token)
        with self._guard:
            found = self._holders.get(name)
            if found is not None:
                self._holders.move_to_end(name)
            return found

    def put(self, token: str, holder: Holder) -> None:
        name = self._name(token)
        with self._guard:
            self._holders[name] = holder
            self._holders.move_to_end(name)
            if len(self._holders) > self._count_max:
                self._holders.popitem(last=False)

    def remove(self, token: str) -> None:
        name = self._name(token)
        with self._guard:
            self._holders.pop(name, None)

    def __len__(self) -> int:
        return len(self._holders)

    def _name(self, token: str) -> bytes:
        return hashlib.blake2b(token.encode("utf-8", "surrogatepass"), key=self._salt, digest_size=32).digest()
