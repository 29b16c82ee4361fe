"""`frazil telemetry errors`: requests that could not be decoded. Works on the catalog, with or without a server."""

from __future__ import annotations

import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from frazil.cli.terminal import options, output
from frazil.core.extras import needs
from frazil.core.names import TopicName

if TYPE_CHECKING:
    from frazil.pipeline.telemetry_errors import TelemetryErrors

app = typer.Typer(no_args_is_help=True, help="Requests of telemetry that could not be decoded.")
errors = typer.Typer(no_args_is_help=True, help="List requests that could not be decoded, and decode them again.")
app.add_typer(errors, name="errors")

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="As /tenant.dataset/traces.")]


@errors.command("list")
def list_(
    topic: TopicArgument,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Show at most so many, the newest.")] = 100,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """List requests that could not be decoded, with the reason; the newest last."""
    found = [asdict(one) for one in _opened(topic, data, config).list(limit)]
    if as_json:
        output.print_json(found)
    elif not found:
        output.say("there are none")
    else:
        shown = [{**one, "appended": output.time_shown(one["append_time_us"])} for one in found]
        names = ("partition", "offset", "appended", "bytes", "replayed", "reason")
        output.print_dicts(names, shown, right=("partition", "offset", "bytes"))


@errors.command()
def replay(
    topic: TopicArgument,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Decode them again, as after an upgrade, and append their rows to the tables; each once, also if repeated."""
    found = _opened(topic, data, config).replay()
    if as_json:
        output.print_json(asdict(found))
        return
    rows = sum((found.rows or {}).values())
    output.say(
        f"{output.plural(found.requests, 'request')} decoded, {output.plural(rows, 'row')} added; "
        f"{found.still_undecoded} still cannot be decoded"
    )


def _opened(topic: str, data: options.Data, config: options.Config) -> TelemetryErrors:
    settings = options.settings_on_disk(data, config)
    with needs():
        from frazil.pipeline.telemetry_errors import TelemetryErrors
    pause = threading.Event()
    return TelemetryErrors(settings, TopicName.parse(topic), lambda seconds: _wait(pause, seconds))


def _wait(pause: threading.Event, seconds: float) -> None:
    pause.wait(seconds)
