"""What the benchmarks share: the bare limit of the disk, percentiles, and a table of ratios."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

Measure = Callable[[], float]
"""Does something once; the seconds that it took."""


@dataclass(frozen=True)
class Figure:
    """One line of the report: what was measured, beside its limit, and the ratio the product promises."""

    name: str
    measured: str
    limit: str
    ratio: float
    wanted: str
    met: bool


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def in_turns(before: Callable[[], object], measures: Mapping[str, Measure], rounds: int) -> dict[str, list[float]]:
    """Each measured in turn, several times, after `before`; the first turn warms what is not the files."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    for turn in range(rounds + 1):
        for name, measure in measures.items():
            before()
            value = measure()
            if turn:
                found[name].append(value)
    return found


@contextmanager
def folder() -> Iterator[Path]:
    """A folder on the file system of FRAZIL_BENCH_FOLDER, or of the current one."""
    with TemporaryDirectory(prefix=".frazil-bench-", dir=os.environ.get("FRAZIL_BENCH_FOLDER", ".")) as name:
        yield Path(name)


class BareFile:
    """Plain write and fdatasync into a preallocated file: the limit that the log is measured against."""

    def __init__(self, path: Path, reserved_bytes: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.posix_fallocate(self._fd, 0, reserved_bytes)
        os.fsync(self._fd)
        self._position = 0
        self._reserved_bytes = reserved_bytes

    def write(self, data: bytes) -> float:
        """Write and sync once; returns the seconds it took."""
        if self._position + len(data) > self._reserved_bytes:
            self._position = 0
        started = time.perf_counter()
        os.pwrite(self._fd, data, self._position)
        os.fdatasync(self._fd)
        taken = time.perf_counter() - started
        self._position += len(data)
        return taken

    def close(self) -> None:
        os.close(self._fd)


def us(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} µs"


def report(title: str, figures: Sequence[Figure]) -> None:
    table = Table(title=title, title_justify="left")
    for column in ("figure", "frazil", "limit in this run", "ratio", "wanted", ""):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for figure in figures:
        verdict = "[green]met[/]" if figure.met else "[red]missed[/]"
        table.add_row(figure.name, figure.measured, figure.limit, f"{figure.ratio:.2f}", figure.wanted, verdict)
    Console(width=140).print(table)
    sys.stdout.flush()
