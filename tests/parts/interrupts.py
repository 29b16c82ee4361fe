"""Interrupts (Ctrl-C) of the main thread at random moments, and threads that must not feel them."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Protocol, Self


class Publisher(Protocol):
    def publish(self, payload: bytes | str) -> int: ...


class Interrupted(BaseException):
    """Stands for Ctrl-C."""


class Interrupts:
    """Raises `Interrupted` in the main thread at random moments, but only inside of `calls`."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._inside = False
        self.count = 0

    @contextlib.contextmanager
    def coming(self) -> Iterator[None]:
        before = signal.signal(signal.SIGALRM, self._on_signal)
        try:
            self._set_timer()
            yield
        finally:
            self._inside = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def call(self, function: Callable[[], object]) -> bool:
        """Whether the call came to its end."""
        try:
            self._inside = True
            function()
            self._inside = False
        except Interrupted:
            self.count += 1
            return False
        return True

    def _on_signal(self, *_: object) -> None:
        self._set_timer()
        if self._inside:
            self._inside = False
            raise Interrupted

    def _set_timer(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._chance.choice([0.0001, 0.0003, 0.001, 0.004]))


class Others:
    """Threads that publish all the while, and what they were answered."""

    def __init__(self, topic: Publisher, threads: int = 2) -> None:
        self._topic = topic
        self._stop = threading.Event()
        self.answered: dict[int, bytes] = {}
        self.errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(threads)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive(), "a publisher waits for ever"

    def _work(self, thread: int) -> None:
        count = 0
        while not self._stop.is_set():
            count += 1
            payload = b"other %d %d" % (thread, count)
            try:
                self.answered[self._topic.publish(payload)] = payload
            except BaseException as error:  # noqa: BLE001 - looked at by the test
                self.errors.append(error)
                return
