"""A consumer of a subscription: known by name permanently, connected as long as its stream is."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from frazil.broker.topics.entry import Entry


class Consumer:
    __slots__ = ("id", "key_filters", "name", "owner", "stream")

    def __init__(self, name: str, number: int, key_filters: Sequence[str] = (), owner: str | None = None) -> None:
        """`owner` is the principal that may use it; None if it was created without security."""
        self.name = name
        self.owner = owner
        self.id = number
        self.key_filters = tuple(key_filters)
        self.stream: Stream | None = None


class Stream:
    """The messages for a consumer, until one side ends it. The window of its subscription limits them."""

    __slots__ = ("_entries", "_more", "ended", "incarnation", "is_replaced")

    def __init__(self, incarnation: int = 0) -> None:
        self.incarnation = incarnation
        """The incarnation that these messages are delivered for: answers return it."""
        self._entries: deque[Entry] = deque()
        self._more = asyncio.Event()
        self.ended = False
        self.is_replaced = False
        """Whether it ended because its consumer has reconnected."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self._entries)

    def put(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._more.set()

    def reset(self, incarnation: int) -> None:
        """Discard messages that were not taken yet."""
        self._entries.clear()
        self.incarnation = incarnation

    @property
    def unsent(self) -> list[int]:
        """Offsets of messages that were not taken yet."""
        return [entry.offset for entry in self._entries]

    def end(self) -> None:
        self.ended = True
        self._more.set()

    async def take(self) -> Entry | None:
        """Return the next message; None when the stream has ended."""
        while not self._entries:
            if self.ended:
                return None
            self._more.clear()
            await self._more.wait()
        return None if self.ended else self._entries.popleft()

    async def take_some(self, count_max: int) -> tuple[int, list[Entry]]:
        """Return the available messages, at least one, and their incarnation; empty when the stream has ended.

        A reset may happen before the caller continues: the incarnation is that of the moment when they were taken.
        """
        first = await self.take()
        if first is None:
            return self.incarnation, []
        taken = [first]
        while self._entries and len(taken) < count_max:
            taken.append(self._entries.popleft())
        return self.incarnation, taken
