"""The replay cache: the newest batches of all topics, limited together by bytes, oldest evicted first.

A second limit may apply to each topic: the number of messages kept.
"""

from __future__ import annotations

import bisect
import threading
from collections import OrderedDict

import pyarrow as pa

_SHARE_MAX = 32
"""No batch takes more than this fraction of the cache."""


class CachedBatch:
    """A stored batch as it was serialised; decoded on the first read, and then shared."""

    __slots__ = ("_payload", "_rows", "_schema", "end", "offset", "size_bytes")

    def __init__(self, offset: int, end: int, payload: pa.Buffer, schema: pa.Schema) -> None:
        self.offset = offset
        self.end = end
        self.size_bytes: int = payload.size
        self._payload = payload
        self._schema = schema
        self._rows: pa.RecordBatch | None = None

    def rows(self) -> pa.RecordBatch:
        if self._rows is None:
            self._rows = pa.ipc.read_record_batch(self._payload, self._schema)
        return self._rows


class ReplayCache:
    """All topics share the bytes, so that ten thousand quiet topics leave the space to the busy ones."""

    def __init__(self, capacity_bytes: int, topic_messages_max: int | None = None) -> None:
        self.guard = threading.Lock()
        self.capacity_bytes = capacity_bytes
        self.topic_messages_max = topic_messages_max
        self.used_bytes = 0
        self._order: OrderedDict[CachedBatch, TopicCache] = OrderedDict()  # oldest first

    def add(self, topic: TopicCache, batch: CachedBatch) -> None:
        """Keep a batch, unless it is so large that it would evict what others still need.

        Such a batch is read from its file, which is in the page cache anyway.
        """
        if batch.size_bytes > self.capacity_bytes // _SHARE_MAX:
            return
        messages_max = self.topic_messages_max
        if messages_max is not None and batch.end - batch.offset > messages_max:
            return
        with self.guard:
            topic.push(batch)
            self._order[batch] = topic
            self.used_bytes += batch.size_bytes
            while self.used_bytes > self.capacity_bytes:
                self._drop_oldest(next(iter(self._order.values())))
            while messages_max is not None and topic.messages > messages_max:
                self._drop_oldest(topic)

    def _drop_oldest(self, topic: TopicCache) -> None:
        batch = topic.drop_oldest()
        del self._order[batch]
        self.used_bytes -= batch.size_bytes

    def forget(self, topic: TopicCache) -> None:
        with self.guard:
            while topic.messages:
                self._drop_oldest(topic)


class TopicCache:
    """The newest batches of one topic, except those too large to keep."""

    __slots__ = ("_batches", "_cache", "_dropped", "messages")

    def __init__(self, cache: ReplayCache) -> None:
        self._cache = cache
        self._batches: list[CachedBatch | None] = []
        self._dropped = 0  # number of entries at the front of the list that are gone
        self.messages = 0

    @property
    def first_offset(self) -> int | None:
        with self._cache.guard:
            batch = self._batches[self._dropped] if self._dropped < len(self._batches) else None
            return batch.offset if batch else None

    def find(self, offset: int) -> CachedBatch | None:
        """Return the batch that holds `offset`, if it is cached."""
        with self._cache.guard:
            batches = self._batches
            if self._dropped == len(batches):
                return None
            newest = batches[-1]
            assert newest is not None
            if newest.offset <= offset:
                return newest if offset < newest.end else None
            at = bisect.bisect_right(batches, offset, lo=self._dropped, key=_offset_of) - 1
            batch = batches[at] if at >= self._dropped else None
            return batch if batch is not None and offset < batch.end else None

    def push(self, batch: CachedBatch) -> None:
        self._batches.append(batch)
        self.messages += batch.end - batch.offset

    def drop_oldest(self) -> CachedBatch:
        oldest, self._batches[self._dropped] = self._batches[self._dropped], None
        assert oldest is not None
        self.messages -= oldest.end - oldest.offset
        self._dropped += 1
        if self._dropped * 2 > len(self._batches):
            del self._batches[: self._dropped]
            self._dropped = 0
        return oldest


def _offset_of(batch: CachedBatch | None) -> int:
    assert batch is not None
    return batch.offset
