"""`frazil top`: rates, lag and freshness of a running server, live."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from frazil.cli.target.server import Server, need_server
from frazil.cli.terminal import options, output
from frazil.cli.terminal.quantities import parse_duration_ms
from frazil.core.clock import SystemClock
from frazil.core.errors import FrazilError

if TYPE_CHECKING:
    from rich.live import Live

    from frazil.cli.terminal.top_figures import Figures, Scrape

INTERVAL_MS_MIN = 100


def top(
    interval: Annotated[str, typer.Option("--interval", metavar="TIME", help="Refresh interval, as 2s.")] = "2s",
    once: Annotated[bool, typer.Option("--once", help="Measure one interval, print, and end.")] = False,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Watch a server until Ctrl-C: rates, lag, freshness, latencies. Waits for a server that goes away.

    If stdout is not a terminal it prints tables, and with --json one object per line.
    """
    interval_seconds = max(INTERVAL_MS_MIN, parse_duration_ms(interval, "--interval")) / 1_000
    watched = Watched(lambda: need_server(server, data, config))
    watched.look()
    live = not as_json and not once and sys.stdout.isatty()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # restores the terminal
    with contextlib.suppress(KeyboardInterrupt), _display(live, as_json) as display:
        if live:
            display.show(watched)
        while True:
            threading.Event().wait(interval_seconds)
            try:
                watched.look()
            except FrazilError as error:
                if once:
                    raise
                display.away(watched, error)
                continue
            display.show(watched)
            if once:
                return


class Watched:
    """A server and its last scrape. A server that is away is looked up again: its address may change."""

    def __init__(self, find: Callable[[], Server]) -> None:
        from frazil.cli.terminal.top_figures import figures, parse

        self._find = find
        self._parse, self._reckon = parse, figures
        self._server: Server | None = None
        self._before: Scrape | None = None
        self.address = ""
        self.figures: Figures

    def look(self) -> None:
        try:
            if self._server is None:
                self._server = self._find()
            text = self._server.metrics()
        except FrazilError:
            self._server = self._before = None
            raise
        now = self._parse(text, time.monotonic())
        self.address = self._server.address
        self.figures = self._reckon(self._before, now)
        self._before = now


class Display(Protocol):
    def show(self, watched: Watched) -> None: ...

    def away(self, watched: Watched, error: FrazilError) -> None: ...


@contextlib.contextmanager
def _display(live: bool, as_json: bool) -> Iterator[Display]:
    if not live:
        yield _Lines(as_json)
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(highlight=False), screen=True, auto_refresh=False) as shown:
        yield _Screen(shown)


class _Screen:
    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, watched: Watched) -> None:
        self._draw(watched, None)

    def away(self, watched: Watched, error: FrazilError) -> None:
        """Keep the last figures on screen."""
        self._draw(watched, error.message)

    def _draw(self, watched: Watched, away: str | None) -> None:
        from frazil.cli.terminal.top_view import screen

        size = self._live.console.size
        self._live.update(screen(watched.address, watched.figures, away, size.width, size.height), refresh=True)


class _Lines:
    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._outage_reported = False

    def show(self, watched: Watched) -> None:
        from frazil.cli.terminal.top_view import print_plain

        self._outage_reported = False
        if self._as_json:
            print(output.json_line({"address": watched.address, **watched.figures.as_dict()}), flush=True)
        else:
            print_plain(watched.address, watched.figures, output.time_shown(SystemClock().now_us()))

    def away(self, watched: Watched, error: FrazilError) -> None:  # noqa: ARG002
        if not self._outage_reported:
            output.say(f"frazil: {error.message}; waiting for it")
        self._outage_reported = True
