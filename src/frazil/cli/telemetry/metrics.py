"""`frazil metrics`: what is measured in a dataset."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from frazil.cli.target.queries import Question, answered
from frazil.cli.telemetry import places
from frazil.cli.telemetry.places import DEFAULT_DATASET, DatasetPlace, find_place, literal, parse_since, time_literal
from frazil.cli.terminal import formats, options, output

app = typer.Typer(no_args_is_help=True, help="List metrics.")

METRICS_MAX = 10_000


@app.command("list")
def list_(
    service: Annotated[str | None, typer.Option("--service", metavar="NAME", help="Only those of this one.")] = None,
    since: places.Since = "1h",
    tenant: places.Tenant = None,
    dataset: places.Dataset = DEFAULT_DATASET,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """List metrics with kind, unit and points since a time, and the last value of gauges and sums."""
    from frazil.telemetry.signals import Signal

    place = find_place(tenant, dataset, server, data, config)
    question = Question(list_statement(place, service=service, since=since))
    with answered(question, server, data, config, topic=place.topic(Signal.METRICS)) as rows:
        found = [formats.json_value(row) for batch in rows.batches for row in formats.batch_rows(batch)]
    if as_json:
        output.print_json(found)
    elif not found:
        output.say("there are no such metrics; see --since, and --tenant")
    else:
        names = ("metric", "kind", "unit", "services", "points", "last", "last_value")
        output.print_dicts(names, map(_rounded, found), right=("services", "points", "last_value"))


def list_statement(place: DatasetPlace, *, service: str | None, since: str | None) -> str:
    time, conditions = parse_since(since), ["true"]
    if time is not None:
        conditions.append(f"timestamp >= {time_literal(time)}")
    if service is not None:
        conditions.append(f"service_name = {literal(service)}")
    where = " AND ".join(conditions)
    last = " UNION ALL ".join(
        f"SELECT {literal(kind)} AS kind, metric_name AS metric, metric_unit AS unit, "  # noqa: S608 - quoted
        f"arg_max(value, timestamp) AS last_value FROM {place.table(table)} WHERE {where} GROUP BY ALL"
        for kind, table in (("Gauge", "metrics_gauge"), ("Sum", "metrics_sum"))
    )
    known = (
        "SELECT metric_type AS kind, metric_name AS metric, metric_unit AS unit, "  # noqa: S608 - quoted
        "count(DISTINCT service_name) AS services, sum(data_points)::BIGINT AS points, max(timestamp) AS last "
        f"FROM {place.table('metrics')} WHERE {where} GROUP BY ALL"
    )
    return (
        f"SELECT metric, kind, unit, services, points, last, last_value FROM ({known}) "  # noqa: S608 - quoted
        f"LEFT JOIN ({last}) USING (metric, kind, unit) ORDER BY metric, kind, unit LIMIT {METRICS_MAX}"
    )


def _rounded(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "last_value": None if one["last_value"] is None else f"{one['last_value']:.6g}"}
