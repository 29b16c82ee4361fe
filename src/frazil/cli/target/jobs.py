"""Long work that a server runs as a job: started, watched until it ends, cancelled by Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

from frazil.cli.target.server import Server
from frazil.core.errors.codec import from_dict

LOOK_SECONDS = 0.2

Begin = Callable[[contextlib.ExitStack, int], Callable[[int], None]]
"""Shows the total amount of work; returns a function to report progress."""


def run_job(server: Server, path: str, asked: Mapping[str, Any], counted: str, begin: Begin) -> dict[str, Any]:
    """Return the job's result, or raise its error."""
    done, advance, job = 0, None, None
    with contextlib.ExitStack() as stack:
        try:
            with _interrupt_deferred():  # a job cannot be cancelled before its id is known
                server, job = server.post_to_owner(path, asked)
                path = f"{path}/{job['id']}"
            while job["state"] in ("queued", "running"):
                threading.Event().wait(LOOK_SECONDS)
                job = server.get(path)
                if advance is None and job["total"] is not None:
                    advance = begin(stack, job["total"])
                if advance is not None:
                    advance(job[counted] - done)
                    done = job[counted]
        except KeyboardInterrupt:
            if job is not None:
                server.delete(path)
            raise
    if job["result"] is None:
        raise from_dict(job["error"] or {"message": "it was cancelled by someone else; begin it again"})
    return dict(job["result"])


@contextlib.contextmanager
def _interrupt_deferred() -> Iterator[None]:
    """Let the first Ctrl-C take effect after the block; a second one takes effect at once."""
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []

    def defer(number: int, frame: FrameType | None) -> None:
        if pending:
            before(number, frame)
        pending.append(number)

    signal.signal(signal.SIGINT, defer)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pending:
            before(signal.SIGINT, None)
