"""A progress bar for long work on a terminal; nothing for quick work or in a script."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from frazil.cli.terminal.output import json_line, stderr_console

if TYPE_CHECKING:
    from rich.progress import Progress

QUIET_SECONDS = 1.0
REPORT_SECONDS = 0.5


class Bar:
    """Shows progress, in bytes by default. It appears once the work takes a while."""

    def __init__(self, label: str, total: int | None, *, of_bytes: bool = True) -> None:
        self._label = label
        self._total = total
        self._of_bytes = of_bytes
        self._done = 0
        self._started = time.monotonic()
        self._progress: Progress | None = None

    def advance(self, count: int) -> None:
        self._done += count
        if self._progress is None:
            if time.monotonic() - self._started < QUIET_SECONDS or not sys.stderr.isatty():
                return
            self._progress = _progress(self._of_bytes)
            self._progress.start()
            self._task = self._progress.add_task(self._label, total=self._total)
        self._progress.update(self._task, completed=self._done)

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()


class JsonProgress:
    """Progress for a waiting program: occasional lines of JSON on stdout."""

    def __init__(self, counted: str, total: int) -> None:
        self._counted = counted
        self._total = total
        self._done = 0
        self._reported_s = 0.0
        self.advance(0)

    def advance(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        if now - self._reported_s >= REPORT_SECONDS:
            self._reported_s = now
            print(json_line({self._counted: self._done, "total": self._total}), flush=True)


@contextlib.contextmanager
def bar(label: str, total_bytes: int | None) -> Iterator[Bar]:
    shown = Bar(label, total_bytes)
    try:
        yield shown
    finally:
        shown.stop()


@contextlib.contextmanager
def counter(label: str, total: int | None) -> Iterator[Bar]:
    """A progress bar for counted items."""
    shown = Bar(label, total, of_bytes=False)
    try:
        yield shown
    finally:
        shown.stop()


def _progress(of_bytes: bool) -> Progress:
    from rich import progress

    amount = (progress.DownloadColumn(binary_units=True), progress.TransferSpeedColumn())
    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        *(amount if of_bytes else (progress.MofNCompleteColumn(),)),
        progress.TimeRemainingColumn(),
        console=stderr_console(),
        transient=True,
    )
