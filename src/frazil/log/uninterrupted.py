"""Calls that an interrupt (Ctrl-C) cannot stop half-way.

Python handles signals in the main thread, between any two steps. So work that changes files and must not stop in
between runs in another thread, and the main thread waits for it. An interrupt ends the wait: the caller does not learn
the outcome, and the call still finishes, before any later call of the caller.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import os
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

_IDLE_SECONDS = 0.1

Made = TypeVar("Made")


class _Calls:
    """Calls of the main thread, executed in order.

    One thread executes them, and ends when it has been idle for a while: starting one for each call took longer than
    the call.
    """

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """In a forked child, start over: the parent's threads do not exist, and a lock that one of them held stays
        locked."""
        self._guard = threading.Lock()
        self._waiting: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._has_worker = False
        self.last_done = threading.Lock()  # locked until the last call is done

    def start(self, call: Callable[[], None]) -> None:
        """An interrupt may end this between any two steps: then the call is executed completely, or never begun.

        If no thread can be started, as while Python 3.12 ends, the call runs here.
        """
        try:
            self._waiting.put(call)
            with self._guard:
                has_worker = self._has_worker
            if not has_worker:
                self._start_worker()
        except BaseException:
            self._taken_out()
            raise

    def _start_worker(self) -> None:
        try:
            start_thread(threading.Thread(target=self._work, name="frazil-call", daemon=True))
        except RuntimeError:
            for call in self._taken_out():
                call()

    def _taken_out(self) -> list[Callable[[], None]]:
        """Return the calls that no worker has begun or will begin."""
        calls = []
        with contextlib.suppress(queue.Empty):
            while True:
                calls.append(self._waiting.get_nowait())
        return calls

    def wait(self) -> None:
        """At exit: an interrupt may have ended the wait for a call that still runs."""
        with self._guard:
            if not self._has_worker:
                return
            done = threading.Lock()
            done.acquire()
            self._waiting.put(done.release)
        done.acquire()

    def _work(self) -> None:
        with self._guard:
            if self._has_worker:
                return  # left by an interrupted start
            self._has_worker = True
        while True:
            try:
                self._waiting.get(timeout=_IDLE_SECONDS)()
            except queue.Empty:
                with self._guard:
                    if self._waiting.empty():
                        self._has_worker = False
                        return


_calls = _Calls()
atexit.register(_calls.wait)
os.register_at_fork(after_in_child=_calls.begin_anew)


def uninterrupted(function: Callable[[], Made]) -> Made:
    """Return or raise the result of `function`. From the main thread it runs in another thread."""
    if not in_main_thread():
        return function()
    returned: list[Made] = []
    raised: list[BaseException] = []
    done = threading.Lock()  # an event would wait in Python code, which an interrupt can break
    done.acquire()

    def run() -> None:
        try:
            returned.append(function())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread of the caller
            raised.append(error)
        finally:
            done.release()

    context = contextvars.copy_context()
    _calls.last_done = done
    _calls.start(lambda: context.run(run))
    done.acquire()
    done.release()
    if raised:
        raise raised[0]
    return returned[0]


def in_main_thread() -> bool:
    """Whether the caller may be interrupted between any two steps."""
    return threading.current_thread() is threading.main_thread()


def is_call_unfinished() -> bool:
    """Whether an interrupted call of this thread still has to finish, before anything that the thread does next."""
    return in_main_thread() and _calls.last_done.locked()


def start_thread(thread: threading.Thread) -> None:
    """Start a thread. An interrupt meanwhile is raised as such: it may break the lock that `start` waits with."""
    try:
        thread.start()
    except RuntimeError as error:
        cause = error.__context__
        if cause is not None and not isinstance(cause, Exception):
            raise cause from None
        raise
