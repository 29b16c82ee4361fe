"""`frazil serve`: own a data folder, open the doors, and have the mover run beside."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from frazil.cli import options

if TYPE_CHECKING:
    from frazil.core.settings import Settings


def serve(
    host: Annotated[str | None, typer.Option("--host", help="Listen here instead of where the settings say.")] = None,
    port: Annotated[int | None, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = None,
    flight_port: Annotated[
        int | None, typer.Option("--flight-port", min=0, max=65535, help="Of the Flight door; 0 takes a free one.")
    ] = None,
    broker_port: Annotated[
        int | None, typer.Option("--broker-port", min=0, max=65535, help="For Danube clients; 0 takes a free one.")
    ] = None,
    admin_port: Annotated[
        int | None, typer.Option("--admin-port", min=0, max=65535, help="For Danube's admin tools; 0 takes a free one.")
    ] = None,
    no_pipeline: Annotated[bool, typer.Option("--no-pipeline", help="Don't move rows to tables.")] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="One JSON object for each event on stderr.")] = False,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Own the data folder, serve HTTP, Flight and Danube clients, and move rows to tables, until SIGTERM or Ctrl-C."""
    from frazil.serve.process import serve_until_stopped  # the web takes longer to import than most verbs to run

    settings = options.settings_on_disk(data, config)
    http = {"host": settings.http.host if host is None else host, "port": settings.http.port if port is None else port}
    flight = {} if flight_port is None else {"port": flight_port}
    broker = {} if broker_port is None else {"port": broker_port}
    broker |= {} if admin_port is None else {"admin_port": admin_port}
    settings = settings.model_copy(
        update={
            "http": settings.http.model_copy(update=http),
            "flight": settings.flight.model_copy(update=flight),
            "broker": settings.broker.model_copy(update=broker),
        }
    )
    mover = None if no_pipeline or not settings.pipeline.enabled else _mover_command(settings, config, log_json)
    command = partial(_command, settings, config)
    serve_until_stopped(settings, mover=mover, command=command, log_json=log_json, announce_json=as_json)


def _mover_command(settings: Settings, config: Path | None, log_json: bool) -> list[str]:
    command = _command(settings, config, "pipeline", "run", "--while-stdin")
    return command + (["--log-json"] if log_json else [])


def _command(settings: Settings, config: Path | None, *verb: str) -> list[str]:
    """The same settings by the same ways; what the environment says it inherits."""
    command = [sys.executable, "-m", "frazil", *verb, "--data", str(settings.data)]
    return command + (["--config", str(config)] if config is not None else [])
