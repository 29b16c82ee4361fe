"""Long work that a server runs as a job: started, watched until it ends, cancelled by Ctrl-C."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

from frazil.cli.target.server import Server
from frazil.core.errors.codec import from_dict

LOOK_SECONDS = 0.2

Begin = Callable[[contextlib.ExitStack, int], Callable[[int], None]]
"""Shows the total amount of work; returns a function to report progress."""


def run_job(server: Server, path: str, asked: Mapping[str, Any], counted: str, begin: Begin) -> dict[str, Any]:
    """Return the job's result, or raise its error."""
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
