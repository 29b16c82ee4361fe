"""A stored message, shared by all subscriptions of its topic."""

from __future__ import annotations

import itertools

from frazil.core.rows import Message

_OVERHEAD_BYTES = 400


class Entry:
    """`wire` caches the protocol encoding of the message for all subscriptions."""

    __slots__ = ("message", "size_bytes", "wire")

    def __init__(self, message: Message) -> None:
        self.message = message
        attributes = sum(len(one) for one in itertools.chain(*message.attributes.items()) if one is not None)
        self.size_bytes = _OVERHEAD_BYTES + len(message.payload) + attributes
        """Approximate size in memory."""
        self.wire: bytes | None = None

    @property
    def offset(self) -> int:
        return self.message.offset

    @property
    def key(self) -> bytes:
        """The key that orders it: the message's own key, else its producer."""
        message = self.message
        return message.key if message.key is not None else (message.producer or "").encode()
