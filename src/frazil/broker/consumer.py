"""A consumer of a subscription: known by name for good, connected as long as its stream is."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from frazil.broker.entry import Entry


class Consumer:
    __slots__ = ("id", "in_flight", "key_filters", "name", "stream")

    def __init__(self, name: str, number: int, key_filters: Sequence[str] = ()) -> None:
        self.name = name
        self.id = number
        self.key_filters = tuple(key_filters)
        self.in_flight: set[int] = set()
        self.stream: Stream | None = None


class Stream:
    """What goes to a consumer, until one side ends it. Bounded by the window of its subscription."""

    __slots__ = ("_entries", "_more", "ended", "epoch")

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch
        """Of the cursor that these messages are delivered for: answers bring it back."""
        self._entries: deque[Entry] = deque()
        self._more = asyncio.Event()
        self.ended = False

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._more.set()

    def begin_anew(self, epoch: int) -> None:
        """What was not taken yet is void."""
        self._entries.clear()
        self.epoch = epoch

    def end(self) -> None:
        self.ended = True
        self._more.set()

    async def take(self) -> Entry | None:
        """The next message; None when the stream has ended."""
        while not self._entries:
            if self.ended:
                return None
            self._more.clear()
            await self._more.wait()
        return None if self.ended else self._entries.popleft()

    async def take_some(self, count_max: int) -> list[Entry]:
        """What is there, at least one; nothing when the stream has ended."""
        first = await self.take()
        if first is None:
            return []
        taken = [first]
        while self._entries and len(taken) < count_max:
            taken.append(self._entries.popleft())
        return taken
