"""A stored message as all subscriptions of its topic share it."""

from __future__ import annotations

import itertools

from frazil.core.rows import Message

_OVERHEAD_BYTES = 400


class Entry:
    """`wire` is for the door: what it made of the message once, it need not make for every subscription."""

    __slots__ = ("message", "size_bytes", "wire")

    def __init__(self, message: Message) -> None:
        self.message = message
        attributes = sum(len(one) for one in itertools.chain(*message.attributes.items()) if one is not None)
        self.size_bytes = _OVERHEAD_BYTES + len(message.payload) + attributes
        """Roughly what it takes in memory."""
        self.wire: bytes | None = None

    @property
    def offset(self) -> int:
        return self.message.offset

    @property
    def key(self) -> bytes:
        """What orders it among others: the key it was sent with, else who sent it."""
        message = self.message
        return message.key if message.key is not None else (message.producer or "").encode()
