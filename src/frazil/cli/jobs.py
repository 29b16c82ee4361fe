"""Long work that a server does as a job of its own: begun, watched until it has ended, ended by Ctrl-C."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

from frazil.cli.server import Server
from frazil.core.error_forms import from_dict

LOOK_SECONDS = 0.2

Begin = Callable[[contextlib.ExitStack, int], Callable[[int], None]]
"""Shows that so much is to be done; gives what is called with how much more is."""


def done_by(server: Server, path: str, asked: Mapping[str, Any], counted: str, begin: Begin) -> dict[str, Any]:
    """Its result, or the error with which it ended."""
    job = server.post(path, asked)
    path, done = f"{path}/{job['id']}", 0
    advance: Callable[[int], None] | None = None
    with contextlib.ExitStack() as stack:
        try:
            while job["state"] in ("queued", "running"):
                threading.Event().wait(LOOK_SECONDS)
                job = server.get(path)
                if advance is None and job["total"] is not None:
                    advance = begin(stack, job["total"])
                if advance is not None:
                    advance(job[counted] - done)
                    done = job[counted]
        except KeyboardInterrupt:
            server.delete(path)
            raise
    if job["result"] is None:
        raise from_dict(job["error"] or {"message": "it was cancelled by someone else; begin it again"})
    return dict(job["result"])
