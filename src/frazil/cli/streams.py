"""The standard streams, whatever the process was started with.

A supervisor may start a program with stdout closed, and a reader may go away. Neither says that the work has failed. A
closed descriptor is also a danger: the next file that is opened, a segment of the log for one, would be stdout.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys

_STDIN, _STDOUT, _STDERR = 0, 1, 2


def open_all() -> None:
    """Every standard descriptor that was closed is the null device, before any other file is opened."""
    for number in (_STDIN, _STDOUT, _STDERR):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
    if sys.stdin is None:
        sys.stdin = open(_STDIN, encoding="utf-8", closefd=False)  # noqa: SIM115 - open as long as the process
    if sys.stdout is None:
        sys.stdout = _writer(_STDOUT)
    if sys.stderr is None:
        sys.stderr = _writer(_STDERR)


def _writer(number: int) -> io.TextIOWrapper:
    return open(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False)


def reader_is_gone() -> bool:
    """Whether nobody can read stdout any more. A broken pipe of a network connection looks the same as an exception."""
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (OSError, ValueError):
        return False


def forget_stdout() -> None:
    """The reader of our output has gone: that is its right. What is still buffered must not raise at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def print_error(line: str) -> None:
    """To stderr; if nobody reads that, the exit code alone says it."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)
