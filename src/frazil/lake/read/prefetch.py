"""Prefetch of pieces by a few threads, with the results in order and in bounded memory.

The current piece needs little memory: its batches are consumed as they arrive. Later pieces share the prefetch memory,
and the nearer a piece is, the more it gets: it is needed sooner, and once it is complete its thread starts the next.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

FIRST_BYTES_MAX = 8 * 1024 * 1024
AHEAD_BYTES_MAX = 64 * 1024 * 1024
"""The second piece may use all of it, the third half of it, and so on."""

Work = Callable[[], Iterator[pa.RecordBatch]]


class Prefetcher:
    """Iterates over the batches of all pieces, in order; `threads` read, at most `ahead` pieces in advance."""

    def __init__(self, pieces: Iterable[Work], threads: int, ahead: int) -> None:
        self._pieces = iter(pieces)
        self._ahead = ahead
        self._changed = threading.Condition()
        self._channels: deque[_Channel] = deque()
        self._bytes = 0
        self._pool = ThreadPoolExecutor(min(threads, ahead + 1), thread_name_prefix="frazil-history")
        self._closed = False
        self._begun = False

    def __iter__(self) -> Prefetcher:
        return self

    def __next__(self) -> pa.RecordBatch:
        while not self._closed:
            self._start_more()
            if not self._channels:
                self.close()
                break
            batch = self._take()
            if not self._begun:
                self._begun = True
                self._start_more()
            if batch is not None:
                return batch
        raise StopIteration

    def close(self) -> None:
        """Stop. Prefetching threads end at their next batch; nothing waits for them."""
        with self._changed:
            self._closed = True
            self._channels.clear()
            self._changed.notify_all()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start_more(self) -> None:
        """Until the first piece has a batch, prefetch only one more: others would delay the reader."""
        ahead = self._ahead if self._begun else min(1, self._ahead)
        while len(self._channels) <= ahead:
            work = next(self._pieces, None)
            if work is None:
                return
            channel = _Channel()
            with self._changed:
                self._channels.append(channel)
            self._pool.submit(self._fill, channel, work)

    def _take(self) -> pa.RecordBatch | None:
        """Return the next batch of the first piece, or None at its end; raises the error of its
        work at its position."""
        first = self._channels[0]
        with self._changed:
            self._changed.wait_for(lambda: first.batches or first.done or self._closed)
            if self._closed:
                return None
            if first.batches:
                batch = first.batches.popleft()
                first.bytes -= batch.nbytes
                self._bytes -= batch.nbytes
            elif first.error is not None:
                raise first.error
            else:
                batch = None
                self._channels.popleft()
            self._changed.notify_all()
            return batch

    # --- in the prefetching threads

    def _fill(self, channel: _Channel, work: Work) -> None:
        error: BaseException | None = None
        try:
            for batch in work():
                if not self._put(channel, batch):
                    break
        except BaseException as raised:  # noqa: BLE001 - handed to the reader, whose thread it is to raise it
            error = raised
        with self._changed:
            channel.error, channel.done = error, True
            self._changed.notify_all()

    def _put(self, channel: _Channel, batch: pa.RecordBatch) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._has_room(channel))
            if self._closed:
                return False
            channel.batches.append(batch)
            channel.bytes += batch.nbytes
            self._bytes += batch.nbytes
            self._changed.notify_all()
            return True

    def _has_room(self, channel: _Channel) -> bool:
        place = self._channels.index(channel)
        return channel.bytes < FIRST_BYTES_MAX if place == 0 else self._bytes < AHEAD_BYTES_MAX >> (place - 1)


class _Channel:
    """The batches of one piece, passed from the prefetching thread to the reader."""

    def __init__(self) -> None:
        self.batches: deque[pa.RecordBatch] = deque()
        self.bytes = 0
        self.done = False
        self.error: BaseException | None = None
