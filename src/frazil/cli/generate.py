"""`frazil generate`: files for other programs, made from what this version has."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from frazil.cli import options, output
from frazil.serve.alerts import alert_rules
from frazil.serve.dashboard import dashboard

app = typer.Typer(no_args_is_help=True, help="Print files for other programs.")


@app.callback()
def _group() -> None:
    """A group even of one verb: Typer would leave its name out."""


@app.command("grafana-dashboard")
def grafana_dashboard(
    alerts: Annotated[
        bool, typer.Option("--alerts", help="Alert rules for Prometheus, as YAML, instead of the dashboard.")
    ] = False,
    data: options.Data = None,  # noqa: ARG001 - on every verb, so that a wrapper may always add them
    config: options.Config = None,  # noqa: ARG001
    as_json: options.Json = False,
) -> None:
    """Print a dashboard that Grafana can import, or alert rules for Prometheus, for the metrics of this version."""
    if not alerts:
        print(json.dumps(dashboard(), indent=2))
    elif as_json:
        output.print_json(alert_rules())
    else:
        import yaml

        print(yaml.safe_dump(alert_rules(), sort_keys=False, width=1_000, allow_unicode=True), end="")
