"""Tables drawn by rich."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table


class _Out(Console):
    def on_broken_pipe(self) -> None:
        """Leave a closed reader to the caller; rich would end the process as failed."""
        raise BrokenPipeError


class Remarks(Console):
    """Remarks on stderr. If nobody reads them, the work continues."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


def print_cells(headings: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    plain_console(4096).print(table)


def plain_console(pipe_width: int) -> Console:
    """Return a console on stdout, as wide as the terminal, or as given in a pipe."""
    out = _Out(highlight=False)
    return out if out.is_terminal else _Out(highlight=False, width=pipe_width)
