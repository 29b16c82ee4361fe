"""A process that ends with the one that started it."""

from __future__ import annotations

import os
import signal
import threading


def end_with_stdin() -> None:
    """Whoever started us holds the other end: if it is gone, even by SIGKILL, we get SIGTERM."""
    threading.Thread(target=_wait_for_its_end, daemon=True).start()


def _wait_for_its_end() -> None:
    while os.read(0, 4096):  # not by sys.stdin: its lock, held here, would be missed when Python ends
        pass
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)  # to the thread that waits
