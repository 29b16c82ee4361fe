"""`frazil pipeline`: move rows from the log to the tables, and show the progress.

Verbs import `frazil.pipeline` inside their functions: importing Spark and PyIceberg takes longer than most verbs run.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.target.server import PAGE_MAX, Server, find_server
from frazil.cli.target.with_parent import end_with_stdin
from frazil.cli.terminal import options, output
from frazil.cli.terminal.progress import Bar
from frazil.core.clock import SystemClock
from frazil.core.errors import InvalidInput, SparkUnavailable
from frazil.core.extras import needs
from frazil.serve.logs import log_to_stderr, log_what_others_write

if TYPE_CHECKING:
    from frazil.core.credentials import ClientCredentials
    from frazil.core.settings import Settings
    from frazil.log.storage import Storage
    from frazil.node.movers.tick_report import TickReport
    from frazil.pipeline.move.runner import Runner

TRY_LATER_CODE = 4

app = typer.Typer(no_args_is_help=True, help="Move rows from the log to the tables, and see how far they are.")


@app.command()
def run(
    once: Annotated[bool, typer.Option("--once", help="Move all current rows, then end.")] = False,
    master: Annotated[str | None, typer.Option("--master", help="A Spark master; default: embedded Spark.")] = None,
    remote: Annotated[str | None, typer.Option("--remote", help="A Spark Connect server, sc://host:port.")] = None,
    owner: Annotated[
        str | None, typer.Option("--owner", help="Whose rows to move, grpc://host:port; default: the folder's owner.")
    ] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="One JSON object for each event on stderr.")] = False,
    while_stdin: options.WhileStdin = False,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Move rows to the tables until SIGTERM or Ctrl-C. Runs next to `frazil serve`, or alone on a folder without owner.

    Of several movers one leads, and the others stand by; with --once, it is an error if another leads.
    """
    settings = options.settings_on_disk(data, config)
    if master is not None and remote is not None:
        raise InvalidInput("--master and --remote exclude each other: give one of them")
    _begin_to_log(log_json)
    signals = _Signals()
    if while_stdin:
        end_with_stdin()
    maintain = None if once else _maintain_command(data, config)
    with _opened(settings, signals, master=master, remote=remote, owner=owner, maintain=maintain, once=once) as runner:
        total = _moved(runner, signals, once=once)
    if total is not None:
        _print_total(total, as_json)


def _begin_to_log(log_json: bool) -> None:
    if log_json:
        log_what_others_write()
    log_to_stderr(as_json=log_json)
    for noisy in ("py4j", "py4j.clientserver", "py4j.java_gateway", "pyiceberg"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


@contextlib.contextmanager
def _opened(settings: Settings, signals: _Signals, **wanted: Any) -> Iterator[Runner]:
    """Create the mover. If no server owns the folder, this process serves it to Spark's tasks over Flight."""
    with needs(SparkUnavailable):
        from frazil.core.credentials import credentials_of
        from frazil.doors.flight.door import flight_door
        from frazil.node.access.single_token import SingleTokenGate
        from frazil.node.node import Node
        from frazil.pipeline.move.runner import open_runner
        from frazil.pipeline.spark.session import end_gateway

    @contextlib.contextmanager
    def open_door(storage: Storage) -> Iterator[tuple[str, ClientCredentials]]:
        """It obeys the rules of a server: beyond loopback only with TLS. With security on, tasks alone get in."""
        node, credentials = Node(storage), credentials_of(settings.client)
        if settings.security.enabled:
            node.gate = gate = SingleTokenGate()
            credentials = replace(credentials, token=gate.token, token_file=None)
        with flight_door(node, settings.flight) as door:
            yield door.advertised, credentials

    with contextlib.ExitStack() as stack:
        stack.callback(end_gateway)
        yield stack.enter_context(open_runner(settings, signals.stop, open_door=open_door, **wanted))


def _moved(runner: Runner, signals: _Signals, *, once: bool) -> TickReport | None:
    """Return what was moved, with `once`; otherwise None, when it is stopped."""
    signals.stop_between_ticks()
    catch_up = _CatchUp(runner.waiting_bytes() if sys.stderr.isatty() else 0)
    try:
        if once:
            return runner.run_once(signals.stop, catch_up.ticked)
        runner.run_until_stopped(signals.stop, catch_up.ticked)
        return None
    finally:
        catch_up.end()


def _maintain_command(data: Path | None, config: Path | None) -> list[str]:
    """Pass the same settings in the same form; the child inherits the environment."""
    command = [sys.executable, "-m", "frazil", "table", "maintain", "--while-stdin", "--json"]
    command += ["--data", str(data)] if data is not None else []
    return command + (["--config", str(config)] if config is not None else [])


@app.command("accept")
def accept_verb(
    topic: options.TopicArgument,
    yes: options.Yes = False,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Accept a table that was rolled back or lacks rows that the log no longer has. The missing rows stay missing."""
    settings = options.settings_on_disk(data, config)
    if not yes:
        typer.confirm(f"Let the table of {topic} continue without its missing rows?", abort=True, err=True)
    from frazil.node.movers.accepting import accept_topic

    table, offset = accept_topic(settings, topic)
    if as_json:
        output.print_json({"topic": topic, "table": table, "offset": offset})
    else:
        output.say(f"{table} continues at offset {offset} of {topic}")


class _Signals:
    """SIGTERM and SIGINT: stop at once while Spark starts, later between ticks; a second signal never waits."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self._between_ticks = False
        self._listen()

    def stop_between_ticks(self) -> None:
        """Install the handler again: Spark has replaced the one for SIGINT."""
        self._between_ticks = True
        self._listen()

    def _listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, *_: object) -> None:
        again = self.stop.is_set()
        self.stop.set()
        if again or not self._between_ticks:
            sys.exit(0)


class _CatchUp:
    """A progress bar for the backlog at the start, without rows that arrive later."""

    def __init__(self, total_bytes: int) -> None:
        self._left = total_bytes
        self._bar: Bar | None = Bar("moving", total_bytes) if total_bytes else None

    def ticked(self, report: TickReport) -> None:
        if self._bar is None:
            return
        left = min(self._left, int(sum(topic.lag_bytes for topic in report.topics.values())))
        self._bar.advance(self._left - left)
        self._left = left
        if not left or not report.rows:
            self.end()

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _print_total(total: TickReport, as_json: bool) -> None:
    errors = {name: topic.error for name, topic in total.topics.items() if topic.error}
    if as_json:
        topics = [
            {"topic": one.topic, "table": one.table, "table_end": one.table_end, "lag_rows": one.lag_rows,
             "error": one.error}
            for one in total.topics.values()
        ]  # fmt: skip
        output.print_json({"rows": total.rows, "commits": total.commits, "topics": topics})
    else:
        print(f"moved {output.plural(total.rows, 'row')} in {output.plural(total.commits, 'commit')}")
        for name, error in errors.items():
            output.say(f"{name}: {error}")
    if errors:
        raise typer.Exit(1)


@app.command()
def status(
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Show for each topic how far its table is. Asks the server, or reads the files if none runs.

    Exit code 4 if the catalog or the store does not answer: table ends are then the last known.
    """
    asked = find_server(server, data, config)
    found = _own_status(options.settings_on_disk(data, config)) if asked is None else _server_status(asked)
    if as_json:
        output.print_json(found)
    else:
        _print_status(found)
    if found["lake_error"]:
        raise typer.Exit(TRY_LATER_CODE)


def _own_status(settings: Settings) -> dict[str, Any]:
    with needs(SparkUnavailable):
        from frazil.node.movers.status import pipeline_status
    return pipeline_status(settings, SystemClock()).as_dict()


def _server_status(server: Server) -> dict[str, Any]:
    """Merge all pages. If the lake was unavailable for one page, it is reported as unavailable."""
    found = page = server.get("/v1/pipeline", limit=PAGE_MAX)
    while page["next"] is not None:
        page = server.get("/v1/pipeline", limit=PAGE_MAX, after=page["next"])
        lake_error = found["lake_error"] or page["lake_error"]
        found = {**found, "lake_error": lake_error, "topics": found["topics"] + page["topics"]}
    return {name: value for name, value in found.items() if name != "next"}


def _print_status(found: dict[str, Any]) -> None:
    where = f" (process {found['mover_pid']} on {found['mover_host']})" if found["mover_pid"] else ""
    print(f"mover: {found['mover']}{where}" + (f"; {found['error']}" if found["error"] else ""))
    if found["since_us"] is not None:
        since, again = (output.time_shown(found[name]) for name in ("since_us", "next_try_us"))
        print(f"waits since {since}; the next try is at {again}")
    if found["lake_error"]:
        print(f"tables: the last known ends are shown; {found['lake_error']}")
    if found["maintenance"] is not None:
        print(f"maintenance: {_maintenance_shown(found['maintenance'])}")
    rows = [
        (
            one["topic"],
            one["log_end"],
            one["table_end"],
            one["lag_rows"],
            output.bytes_shown(one["lag_bytes"]),
            "-" if one["lag_ms"] is None else f"{one['lag_ms'] / 1_000:.1f} s",
            output.time_shown(None if one["committed_ms"] is None else one["committed_ms"] * 1_000),
            one["snapshot_id"],
            one["last_error"],
        )
        for one in found["topics"]
    ]
    headings = ("topic", "log end", "table end", "lag", "size", "age", "last commit", "snapshot", "last error")
    if rows:
        output.print_table(headings, rows, right=headings[1:6])


def _maintenance_shown(report: dict[str, Any]) -> str:
    at = output.time_shown(report.get("time_us"))
    kept = output.plural(int(report.get("tables") or 0), "table")
    error = f"; {report['error']}" if report.get("error") else ""
    return {
        "off": f"off{error}",
        "waiting": f"first at {at}",
        "running": f"runs since {at}",
    }.get(str(report.get("state")), f"last at {at}, {kept} changed{error}")
