"""The standard streams, in whatever state the process was started.

A supervisor may start a program with stdout closed, and a reader may go away. Neither means that the work has failed. A
closed descriptor is also dangerous: the next opened file, such as a log segment, would become stdout.
"""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Iterable

_STDIN, _STDOUT, _STDERR = 0, 1, 2
_WRITE_BYTES = 256 * 1024


def open_all() -> None:
    """Open the null device for every closed standard descriptor, before any other file is opened."""
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
    """Whether stdout has no reader. A broken network connection raises the same exception."""
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (OSError, ValueError):
        return False


def forget_stdout() -> None:
    """Discard stdout after its reader has gone, so that buffered output does not raise at exit."""
    _discard(sys.stdout.fileno())


def print_error(line: str) -> None:
    """Print to stderr; if nobody reads it, the exit code reports the error.

    What stays in the buffer of a broken stderr would change the exit code when Python writes it again at the end.
    """
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        _discard(_STDERR)


def _discard(number: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)


def write_lines(lines: Iterable[bytes]) -> None:
    """Write in large pieces, and flush after each batch, so that a follower sees it at once."""
    out = sys.stdout.buffer
    held, held_bytes = [], 0
    for line in lines:
        held.append(line)
        held_bytes += len(line)
        if held_bytes >= _WRITE_BYTES:
            out.write(b"".join(held))
            held, held_bytes = [], 0
    out.write(b"".join(held))
    out.flush()
