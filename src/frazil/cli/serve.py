"""`frazil serve`: own a data folder, serve its clients, and run the mover in a second process."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from frazil.cli.terminal import options
from frazil.core.errors import InvalidInput

if TYPE_CHECKING:
    from frazil.core.settings import Settings
    from frazil.core.settings.telemetry import TelemetrySettings


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
    telemetry: Annotated[
        bool, typer.Option("--telemetry", help="Let OpenTelemetry's exporters send, over OTLP/gRPC and OTLP/HTTP.")
    ] = False,
    otlp_host: Annotated[str | None, typer.Option("--otlp-host", help="Of both doors for OTLP.")] = None,
    otlp_grpc_port: Annotated[
        int | None, typer.Option("--otlp-grpc-port", min=0, max=65535, help="For OTLP/gRPC; 0 takes a free one.")
    ] = None,
    otlp_http_port: Annotated[
        int | None, typer.Option("--otlp-http-port", min=0, max=65535, help="For OTLP/HTTP; 0 takes a free one.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let other hosts in without security: only in a trusted network.")
    ] = False,
    no_pipeline: Annotated[bool, typer.Option("--no-pipeline", help="Don't move rows to tables.")] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="One JSON object for each event on stderr.")] = False,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Own the data folder, serve HTTP, Flight, Danube and OTLP clients, and move rows to tables, until SIGTERM or
    Ctrl-C."""
    from frazil.serve.process import serve_until_stopped  # importing the web framework takes longer than most verbs run

    settings = options.settings_on_disk(data, config)
    http = {"host": settings.http.host if host is None else host, "port": settings.http.port if port is None else port}
    flight = {} if flight_port is None else {"port": flight_port}
    broker = {} if broker_port is None else {"port": broker_port}
    broker |= {} if admin_port is None else {"admin_port": admin_port}
    security = {"insecure": True} if insecure else {}
    settings = settings.model_copy(
        update={
            "security": settings.security.model_copy(update=security),
            "http": settings.http.model_copy(update=http),
            "flight": settings.flight.model_copy(update=flight),
            "broker": settings.broker.model_copy(update=broker),
            "telemetry": _telemetry(settings.telemetry, telemetry, otlp_host, otlp_grpc_port, otlp_http_port),
        }
    )
    mover = None if no_pipeline or not settings.pipeline.enabled else _mover_command(settings, config, log_json)
    command = partial(_command, settings, config)
    serve_until_stopped(settings, mover=mover, command=command, log_json=log_json, announce_json=as_json)


def _telemetry(
    settings: TelemetrySettings, enabled: bool, host: str | None, grpc_port: int | None, http_port: int | None
) -> TelemetrySettings:
    """Return the settings with these options. Only the server asks whether telemetry is enabled, not the mover."""
    given = {"grpc_host": host, "http_host": host, "grpc_port": grpc_port, "http_port": http_port}
    otlp = {name: value for name, value in given.items() if value is not None}
    if otlp and not (enabled or settings.enabled):
        raise InvalidInput(
            "--otlp-… says where the doors for OTLP listen: open them with --telemetry", option="--telemetry"
        )
    update = {"enabled": enabled or settings.enabled, "otlp": settings.otlp.model_copy(update=otlp)}
    return settings.model_copy(update=update)


def _mover_command(settings: Settings, config: Path | None, log_json: bool) -> list[str]:
    command = _command(settings, config, "pipeline", "run", "--while-stdin")
    return command + (["--log-json"] if log_json else [])


def _command(settings: Settings, config: Path | None, *verb: str) -> list[str]:
    """Pass the same settings in the same form; the child inherits the environment."""
    command = [sys.executable, "-m", "frazil", *verb, "--data", str(settings.data)]
    return command + (["--config", str(config)] if config is not None else [])
