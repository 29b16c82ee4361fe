"""The committers: a few threads, shared by all topics, that write and sync."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable

from frazil.log.uninterrupted import start_thread

_log = logging.getLogger("frazil.log")


class CommitPool:
    """Threads start on demand and never exceed `size`: ten thousand idle topics have no threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closing = False

    def submit(self, job: Callable[[], None]) -> None:
        """Jobs handle their own errors; each topic has at most one waiting here.

        If no thread can be started at all, jobs run here: a waiting caller must not wait for ever.
        """
        self._jobs.put(job)
        if len(self._threads) < self._size:
            with self._guard:
                self._start_if_busy()
            if not self._threads:
                self._work_here()

    @property
    def is_busy(self) -> bool:
        """Whether jobs wait for a committer."""
        return bool(self._threads) and not self._jobs.empty()

    def close(self) -> None:
        """Finish submitted work, then end the threads."""
        with self._guard:
            self._closing = True  # the existing threads do the rest
        self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _start_if_busy(self) -> None:
        if self._jobs.qsize() > self._idle and len(self._threads) < self._size and not self._closing:
            name = f"frazil-commit-{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            try:
                start_thread(thread)
            except RuntimeError as error:  # the system has no thread available; the existing ones do the rest
                _log.warning("no thread for a committer: %s", error)
                return
            self._threads.append(thread)  # an interrupted start must not count

    def _work_here(self) -> None:
        with contextlib.suppress(queue.Empty):
            while (job := self._jobs.get_nowait()) is not None:
                job()

    def _work(self) -> None:
        while True:
            with self._guard:
                self._idle += 1
            job = self._jobs.get()
            with self._guard:
                self._idle -= 1
                if job is not None:
                    self._start_if_busy()  # a concurrent submit counted this thread as idle
            if job is None:
                self._jobs.put(None)  # for the others
                return
            job()
