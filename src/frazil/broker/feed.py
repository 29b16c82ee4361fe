"""Messages of one topic for its subscriptions: read once and decoded once, as long as they are read at about the same
time. Whoever is further back reads for itself, from files or the table."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

import pyarrow as pa

from frazil.broker.entry import Entry
from frazil.core.offsets import Place
from frazil.core.rows import to_messages
from frazil.log.group import call_on
from frazil.log.reader import BatchReader
from frazil.log.topic import Topic

DECODED_ROWS_MAX = 256
"""So many rows are decoded at once: the loop has others to serve."""
SHARED_BYTES_MAX = 4 * 1024 * 1024


class Feed:
    """The topic's end, and what was decoded lately."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self._loop = asyncio.get_running_loop()
        self._shared: OrderedDict[int, tuple[list[Entry], int]] = OrderedDict()
        self._shared_bytes = 0
        self._listening: dict[Callable[[], None], None] = {}

    @property
    def end(self) -> int:
        return self.topic.log.visible_end

    def reader(self, offset: int, after: Place | None = None) -> FeedReader:
        """`after` is where the table has a row before `offset`, if that is known."""
        return FeedReader(self, offset, after)

    def listen(self, told: Callable[[], None]) -> None:
        """Be told, on the loop, of the next move of the end. Once asked for, once told: ask before looking.

        Those who do not ask cost nothing when a message is published, however many they are.
        """
        if not self._listening:
            self.topic.log.tail.add(self._wake)
        self._listening[told] = None

    def close(self) -> None:
        self.topic.log.tail.discard(self._wake)
        self._shared.clear()

    def _wake(self) -> None:
        call_on(self._loop, self._told)

    def _told(self) -> None:
        listening, self._listening = self._listening, {}
        for told in listening:
            told()

    # --- for its readers

    def shared(self, offset: int) -> list[Entry] | None:
        found = self._shared.get(offset)
        if found is None:
            return None
        self._shared.move_to_end(offset)
        return found[0]

    def share(self, entries: list[Entry], size: int) -> None:
        if size > SHARED_BYTES_MAX:
            return
        before = self._shared.pop(entries[0].offset, None)
        self._shared[entries[0].offset] = (entries, size)
        self._shared_bytes += size - (before[1] if before else 0)
        while self._shared_bytes > SHARED_BYTES_MAX:
            self._shared_bytes -= self._shared.popitem(last=False)[1][1]


class FeedReader:
    """From an offset on, at a subscription's own pace. It holds one batch at most."""

    def __init__(self, feed: Feed, offset: int, after: Place | None = None) -> None:
        self._feed = feed
        self._reader = BatchReader(feed.topic.log, offset, follow=True, after=after)
        self._rest: pa.RecordBatch | None = None
        self.offset = offset

    async def next(self) -> list[Entry]:
        """Some messages; none if there are none now."""
        if self._rest is None:
            entries = self._feed.shared(self.offset)
            if entries is not None:
                self._go_to(entries[-1].offset + 1)
                return entries
            self._rest = await self._poll()
            if self._rest is None:
                return []
        batch = self._rest.slice(0, DECODED_ROWS_MAX)
        self._rest = self._rest.slice(DECODED_ROWS_MAX) if self._rest.num_rows > DECODED_ROWS_MAX else None
        entries = [Entry(message) for message in to_messages(batch)]
        self.offset = entries[-1].offset + 1
        self._feed.share(entries, batch.nbytes)
        return entries

    def skip_to(self, offset: int) -> None:
        """Over what can no longer be had."""
        self._rest = None
        self._go_to(offset)

    def close(self) -> None:
        self._reader.close()

    async def _poll(self) -> pa.RecordBatch | None:
        reader = self._reader
        batch = reader.poll(cached_only=True)
        if batch is None and not reader.waits:
            batch = await asyncio.to_thread(reader.poll)
        return batch

    def _go_to(self, offset: int) -> None:
        self.offset = self._reader.offset = offset
