"""Messages of one topic for its subscriptions: read and decoded once, if they are read at about the same time.
Subscriptions that lag read for themselves, from files or the table."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from frazil.broker.topics.entry import Entry
from frazil.core.offsets import Place
from frazil.core.rows import to_messages
from frazil.log.read.reader import BatchReader
from frazil.log.topic import Topic
from frazil.log.write.group import call_on

DECODED_ROWS_MAX = 256
"""Rows decoded at once: the loop must serve others."""
SHARED_BYTES_MAX = 4 * 1024 * 1024

_READING = ThreadPoolExecutor(16, "frazil-feed")
"""For subscriptions that lag: a table that hangs must not block other work in threads."""


class Feed:
    """The topic's end, and recently decoded messages."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.loop = asyncio.get_running_loop()
        self._shared: OrderedDict[int, tuple[list[Entry], int]] = OrderedDict()
        self._shared_bytes = 0
        self._listening: dict[Callable[[], None], None] = {}

    @property
    def end(self) -> int:
        return self.topic.log.visible_end

    def reader(self, offset: int, after: Place | None = None) -> FeedReader:
        """`after` is the table place of a row before `offset`, if known."""
        return FeedReader(self, offset, after)

    def listen(self, notify: Callable[[], None]) -> None:
        """Get one notification, on the loop, of the next change of the end. Register before checking the end.

        Subscriptions that do not register cost nothing when a message is published.
        """
        if not self._listening:
            self.topic.log.tail.add(self._wake)
        self._listening[notify] = None

    def close(self) -> None:
        self.topic.log.tail.discard(self._wake)
        self._shared.clear()

    def _wake(self) -> None:
        call_on(self.loop, self._notify)

    def _notify(self) -> None:
        listening, self._listening = self._listening, {}
        for notify in listening:
            notify()

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
    """Reads from an offset on, at a subscription's own pace. It holds one batch at most."""

    def __init__(self, feed: Feed, offset: int, after: Place | None = None) -> None:
        self._feed = feed
        self._reader = BatchReader(feed.topic.log, offset, follow=True, after=after)
        self._rest: pa.RecordBatch | None = None
        self.offset = offset

    async def next(self) -> list[Entry]:
        """Return some messages; empty if there are none now."""
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
        """Skip messages that are no longer available."""
        self._rest = None
        self._go_to(offset)

    def close(self) -> None:
        self._reader.close()

    async def _poll(self) -> pa.RecordBatch | None:
        reader = self._reader
        batch = reader.poll(cached_only=True)
        if batch is None and not reader.waits:
            batch = await self._feed.loop.run_in_executor(_READING, reader.poll)
        return batch

    def _go_to(self, offset: int) -> None:
        self.offset = self._reader.offset = offset
