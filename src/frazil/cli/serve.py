"""`frazil serve`: own a data folder and open the doors."""

from __future__ import annotations

from typing import Annotated

import typer

from frazil.cli import options
from frazil.core.settings import HttpSettings


def serve(
    host: Annotated[str | None, typer.Option("--host", help="Listen here instead of where the settings say.")] = None,
    port: Annotated[int | None, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="One JSON object for each event on stderr.")] = False,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Own the data folder and serve health, metrics and topics over HTTP, until SIGTERM or Ctrl-C."""
    from frazil.serve.process import serve_until_stopped  # the web takes longer to import than most verbs to run

    settings = options.settings_on_disk(data, config)
    http = HttpSettings(
        host=settings.http.host if host is None else host, port=settings.http.port if port is None else port
    )
    serve_until_stopped(settings.model_copy(update={"http": http}), log_json=log_json, announce_json=as_json)
