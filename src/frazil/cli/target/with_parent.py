"""End this process when its parent ends."""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import Any

from frazil.core.errors import InvalidInput


def end_with_stdin() -> None:
    """Raise SIGTERM when stdin closes: the parent holds the other end, so this works even if it got SIGKILL."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_wait_for_its_end, daemon=True).start()


def read_stdin() -> Any:
    """Return the JSON value that the parent has written as one line: others must not see it on a command line.

    Called before `end_with_stdin`, which reads what comes after.
    """
    line = b""
    while not line.endswith(b"\n"):
        if not (more := os.read(0, 65_536)):
            raise InvalidInput("stdin ended before the line that was expected there")
        line += more
    return json.loads(line)


def _wait_for_its_end() -> None:
    while os.read(0, 4096):  # not through sys.stdin: its lock, held here, would block Python's shutdown
        pass
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)  # to the waiting thread
