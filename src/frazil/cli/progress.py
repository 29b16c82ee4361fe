"""A progress bar for what takes long, on a terminal; nothing at all for what is quick or runs in a script."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from frazil.cli.output import stderr_console

QUIET_SECONDS = 1.0


class Bar:
    """Bytes done of bytes to do. It appears once the work has taken longer than a moment."""

    def __init__(self, label: str, total_bytes: int | None) -> None:
        self._label = label
        self._total = total_bytes
        self._done = 0
        self._started = time.monotonic()
        self._progress: Progress | None = None

    def advance(self, count: int) -> None:
        self._done += count
        if self._progress is None:
            if time.monotonic() - self._started < QUIET_SECONDS or not sys.stderr.isatty():
                return
            self._progress = _progress()
            self._progress.start()
            self._task = self._progress.add_task(self._label, total=self._total)
        self._progress.update(self._task, completed=self._done)

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()


@contextlib.contextmanager
def bar(label: str, total_bytes: int | None) -> Iterator[Bar]:
    shown = Bar(label, total_bytes)
    try:
        yield shown
    finally:
        shown.stop()


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=stderr_console(),
        transient=True,
    )
