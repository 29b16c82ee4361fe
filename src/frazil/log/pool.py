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
    """Threads start when first needed and never more than `size`: ten thousand idle topics have none of their own."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closing = False

    def submit(self, job: Callable[[], None]) -> None:
        """Jobs answer for their own errors; each topic has at most one waiting here.

        Where no thread can be had at all, they are done here: whoever waits for one must not wait for ever.
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
        """Finish what was submitted, then end the threads."""
        with self._guard:
            self._closing = True  # those that are there do the rest
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
            except RuntimeError as error:  # the system has none to give now; those that are there do the rest
                _log.warning("no thread for a committer: %s", error)
                return
            self._threads.append(thread)  # a caller may be interrupted before: one that never started must not count

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
                    self._start_if_busy()  # whoever submitted one meanwhile took this thread for idle
            if job is None:
                self._jobs.put(None)  # for the others
                return
            job()
