"""`frazil generate`: files for other programs, generated for this version."""

from __future__ import annotations

from importlib import resources
from typing import Annotated

import typer

from frazil.cli.terminal import options, output

FILES = "frazil.doors.metrics"
DASHBOARD, ALERTS = "grafana-dashboard.json", "prometheus-alerts.yaml"

app = typer.Typer(no_args_is_help=True, help="Print files for other programs.")


@app.callback()
def _group() -> None:
    """Force a group even with one verb: Typer would leave its name out."""


@app.command("grafana-dashboard")
def grafana_dashboard(
    alerts: Annotated[
        bool, typer.Option("--alerts", help="Alert rules for Prometheus, as YAML, instead of the dashboard.")
    ] = False,
    data: options.Data = None,  # noqa: ARG001 - on every verb, so that a wrapper may always add them
    config: options.Config = None,  # noqa: ARG001
    as_json: options.Json = False,
) -> None:
    """Print a Grafana dashboard, or Prometheus alert rules, for the metrics of this version."""
    text = resources.files(FILES).joinpath(ALERTS if alerts else DASHBOARD).read_text(encoding="utf-8")
    if alerts and as_json:
        import yaml

        output.print_json(yaml.safe_load(text))
    else:
        print(text, end="")
