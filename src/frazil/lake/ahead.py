"""Pieces of work done ahead by a few threads, their results taken in order, in bounded memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

CHANNEL_BYTES_MAX = 8 * 1024 * 1024
"""What one piece may hold ready. A piece that has more waits for its reader."""

Work = Callable[[], Iterator[pa.RecordBatch]]


class Ahead:
    """Iterate over the batches of all pieces, in their order; `threads` read, at most `ahead` pieces in front."""

    def __init__(self, pieces: Iterable[Work], threads: int, ahead: int) -> None:
        self._pieces = iter(pieces)
        self._ahead = ahead
        self._channels: deque[_Channel] = deque()
        self._pool = ThreadPoolExecutor(min(threads, ahead + 1), thread_name_prefix="frazil-history")
        self._closed = False
        self._begun = False

    def __iter__(self) -> Ahead:
        return self

    def __next__(self) -> pa.RecordBatch:
        while not self._closed:
            self._start_more()
            if not self._channels:
                self.close()
                break
            batch = self._channels[0].take()
            if not self._begun:
                self._begun = True
                self._start_more()
            if batch is not None:
                return batch
            self._channels.popleft()
        raise StopIteration

    def close(self) -> None:
        """Whoever reads ahead stops at its next batch; nobody waits for it."""
        self._closed = True
        for channel in self._channels:
            channel.close()
        self._channels.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start_more(self) -> None:
        """The first piece reads alone until it has a batch: what is read ahead would only make its reader wait."""
        ahead = self._ahead if self._begun else 0
        while len(self._channels) <= ahead:
            work = next(self._pieces, None)
            if work is None:
                return
            channel = _Channel()
            self._channels.append(channel)
            self._pool.submit(channel.fill, work)


class _Channel:
    """The batches of one piece, from the thread that reads them to the reader."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._batches: deque[pa.RecordBatch] = deque()
        self._bytes = 0
        self._done = False
        self._closed = False
        self._error: BaseException | None = None

    def fill(self, work: Work) -> None:
        error: BaseException | None = None
        try:
            for batch in work():
                if not self._put(batch):
                    break
        except BaseException as raised:  # noqa: BLE001 - handed to the reader, whose thread it is to raise it
            error = raised
        with self._changed:
            self._error, self._done = error, True
            self._changed.notify_all()

    def take(self) -> pa.RecordBatch | None:
        """The next batch, or None at the end; what the work raised, in its place."""
        with self._changed:
            self._changed.wait_for(lambda: self._batches or self._done)
            if self._batches:
                batch = self._batches.popleft()
                self._bytes -= batch.nbytes
                self._changed.notify_all()
                return batch
            if self._error is not None:
                raise self._error
            return None

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._batches.clear()
            self._changed.notify_all()

    def _put(self, batch: pa.RecordBatch) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._bytes < CHANNEL_BYTES_MAX)
            if self._closed:
                return False
            self._batches.append(batch)
            self._bytes += batch.nbytes
            self._changed.notify_all()
            return True
