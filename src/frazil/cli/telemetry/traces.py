"""`frazil traces`: find traces, and draw one as a waterfall."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from frazil.cli.target.queries import Question, answered
from frazil.cli.telemetry import places
from frazil.cli.telemetry.durations import duration_shown
from frazil.cli.telemetry.places import DEFAULT_DATASET, DatasetPlace, find_place, literal, parse_since, time_literal
from frazil.cli.telemetry.waterfall import SpanEvent, SpanRow, TraceSpan, Waterfall, layout
from frazil.cli.terminal import options, output
from frazil.cli.terminal.quantities import parse_duration_ms
from frazil.core.errors import InvalidInput, TraceNotFound

app = typer.Typer(no_args_is_help=True, help="Find traces, and draw one.")

SPANS_MAX = 50_000
"""Spans that are fetched of a trace."""
TRACES_MAX = 10_000
_TRACE_ID = re.compile(r"[0-9A-Fa-f]{1,32}", re.ASCII)
_SPAN_COLUMNS = (
    "span_id, parent_span_id, span_name, service_name, span_kind, time_unix_nano, duration_ns, status_code, "
    "status_message, events"
)

Service = Annotated[str | None, typer.Option("--service", metavar="NAME", help="With a span of this service.")]
MinDuration = Annotated[str | None, typer.Option("--min-duration", metavar="TIME", help="As long as 250ms, or longer.")]


@app.command()
def show(
    trace_id: Annotated[str, typer.Argument(metavar="TRACE_ID", help="In hexadecimal.")],
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=SPANS_MAX, help="Spans to draw.")] = 1_000,
    events: Annotated[bool, typer.Option("--events", help="List the events of spans.")] = False,
    since: places.Since = None,
    tenant: places.Tenant = None,
    dataset: places.Dataset = DEFAULT_DATASET,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Draw a trace: spans as a tree, with bars for their times. --since finds it faster."""
    if not _TRACE_ID.fullmatch(trace_id):
        raise InvalidInput(f"{trace_id!a:.80} is no trace id: 32 hexadecimal digits", field="trace_id")
    wanted = trace_id.lower().rjust(32, "0")
    place = find_place(tenant, dataset, server, data, config)
    with _answered(show_statement(place, wanted, since), place, server, data, config) as rows:
        spans = [_span(row) for batch in rows.batches for row in batch.to_pylist()]
    if not spans:
        raise TraceNotFound(wanted, f"{place.tenant}.{place.dataset}")
    found = layout(spans[:SPANS_MAX])
    shown = found.rows[:limit]
    if as_json:
        output.print_json(_as_json(wanted, found, shown, is_cut=len(spans) > SPANS_MAX))
        return
    _print(wanted, found, shown, is_cut=len(spans) > SPANS_MAX, events=events)


@app.command("list")
def list_(
    service: Service = None,
    min_duration: MinDuration = None,
    errors: Annotated[bool, typer.Option("--errors", help="Only those with an error.")] = False,
    since: places.Since = "1h",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=TRACES_MAX, help="How many, the newest.")] = 20,
    tenant: places.Tenant = None,
    dataset: places.Dataset = DEFAULT_DATASET,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """List traces that began lately, the newest first, by the spans that began since then."""
    place = find_place(tenant, dataset, server, data, config)
    least_ms = None if min_duration is None else parse_duration_ms(min_duration, "--min-duration")
    statement = list_statement(
        place, service=service, min_duration_ms=least_ms, only_errors=errors, since=since, limit=limit
    )
    with _answered(statement, place, server, data, config) as rows:
        found = [row for batch in rows.batches for row in batch.to_pylist()]
    if as_json:
        output.print_json([_summary(one) for one in found])
    elif not found:
        output.say("there are no such traces; see --since, and --tenant")
    else:
        shown = [[one[key] for key in ("start", "trace", "root", "service", "took", "spans", "errors")]
                 for one in map(_shown, found)]  # fmt: skip
        headings = ("start", "trace", "root", "service", "duration", "spans", "errors")
        output.print_table(headings, shown, right=("duration", "spans", "errors"))


def show_statement(place: DatasetPlace, trace_id: str, since: str | None) -> str:
    time = parse_since(since)
    where = f"trace_id = {literal(trace_id)}" + ("" if time is None else f" AND timestamp >= {time_literal(time)}")
    order = f"ORDER BY time_unix_nano, _offset, _index LIMIT {SPANS_MAX + 1}"
    return f"SELECT {_SPAN_COLUMNS} FROM {place.table('traces')} WHERE {where} {order}"  # noqa: S608 - quoted


def list_statement(
    place: DatasetPlace,
    *,
    service: str | None,
    min_duration_ms: int | None,
    only_errors: bool,
    since: str | None,
    limit: int,
) -> str:
    time = parse_since(since)
    having = ["true"]
    if service is not None:
        having.append(f"bool_or(service_name = {literal(service)})")
    if min_duration_ms is not None:
        having.append(f"duration_ns >= {min_duration_ms * 1_000_000}")
    if only_errors:
        having.append("errors > 0")
    root = "ORDER BY parent_span_id <> '', time_unix_nano, _offset, _index"
    columns = (
        "trace_id, min(time_unix_nano) AS start_ns, "
        "max(time_unix_nano + greatest(duration_ns, 0)) - min(time_unix_nano) AS duration_ns, count(*) AS spans, "
        "count(*) FILTER (status_code = 'Error') AS errors, "
        f"first(span_name {root}) AS root, first(service_name {root}) AS service"
    )
    where = "trace_id <> ''" + ("" if time is None else f" AND timestamp >= {time_literal(time)}")
    return (
        f"SELECT {columns} FROM {place.table('traces')} WHERE {where} GROUP BY trace_id "  # noqa: S608 - quoted
        f"HAVING {' AND '.join(having)} ORDER BY start_ns DESC, trace_id LIMIT {limit}"
    )


def _answered(statement: str, place: DatasetPlace, *where: Any) -> Any:
    from frazil.telemetry.signals import Signal

    return answered(Question(statement), *where, topic=place.topic(Signal.TRACES))


def _span(row: dict[str, Any]) -> TraceSpan:
    events = (
        SpanEvent(one["time_unix_nano"] or 0, one["name"] or "", dict(one["attributes"] or ()))
        for one in row["events"] or ()
    )
    return TraceSpan(
        span_id=row["span_id"] or "",
        parent_id=row["parent_span_id"] or "",
        name=row["span_name"] or "",
        service=row["service_name"],
        kind=row["span_kind"] or "",
        start_ns=row["time_unix_nano"] or 0,
        duration_ns=row["duration_ns"] or 0,
        status=row["status_code"] or "",
        message=row["status_message"] or "",
        events=tuple(events),
    )


def _print(trace_id: str, found: Waterfall, shown: Sequence[SpanRow], *, is_cut: bool, events: bool) -> None:
    from frazil.cli.telemetry.waterfall_view import print_waterfall

    services = found.services
    print(
        f"trace {trace_id}: {output.plural(len(found.rows), 'span')} of {output.plural(len(services), 'service')}, "
        f"{duration_shown(found.end_ns - found.start_ns)} from {output.time_shown(found.start_ns // 1_000)}, "
        f"{output.plural(found.errors, 'error')}"
    )
    print_waterfall(found, shown, events=events)
    left = found.rows[len(shown) :]
    if left:
        failed = sum(row.span.is_error for row in left)
        output.say(f"{output.plural(len(left), 'span')} are left out, {failed} with an error; see --limit and --json")
    if is_cut:
        output.say(f"the trace has more than {SPANS_MAX} spans; the rest is left out")


def _as_json(trace_id: str, found: Waterfall, shown: Iterable[SpanRow], *, is_cut: bool) -> dict[str, Any]:
    rows = [_row_json(row) for row in shown]
    return {
        "trace_id": trace_id,
        "start_unix_nano": found.start_ns,
        "duration_ns": found.end_ns - found.start_ns,
        "services": found.services,
        "errors": found.errors,
        "spans": rows,
        "left_out": len(found.rows) - len(rows),
        "is_cut": is_cut,
    }


def _row_json(row: SpanRow) -> dict[str, Any]:
    span = row.span
    events = [{"time_unix_nano": one.time_ns, "name": one.name, "attributes": one.attributes} for one in span.events]
    own = {
        "span_id": span.span_id,
        "parent_span_id": span.parent_id,
        "name": span.name,
        "service": span.service,
        "kind": span.kind,
        "start_unix_nano": span.start_ns,
        "duration_ns": span.duration_ns,
        "status": span.status,
        "status_message": span.message,
    }
    return {"depth": row.depth, **own, "events": events, "notes": row.notes}


def _summary(one: dict[str, Any]) -> dict[str, Any]:
    return {
        "trace_id": one["trace_id"],
        "start_unix_nano": one["start_ns"],
        "duration_ns": one["duration_ns"],
        "spans": one["spans"],
        "errors": one["errors"],
        "root": one["root"],
        "service": one["service"],
    }


def _shown(one: dict[str, Any]) -> dict[str, Any]:
    return {
        "start": output.time_shown(one["start_ns"] // 1_000),
        "trace": one["trace_id"],
        "root": output.fact_shown(one["root"]),
        "service": output.fact_shown(one["service"]),
        "took": duration_shown(one["duration_ns"]),
        "spans": one["spans"],
        "errors": one["errors"],
    }
