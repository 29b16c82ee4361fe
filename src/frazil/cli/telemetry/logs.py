"""`frazil logs`: the last log records of a dataset, and those that follow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.target.opened_topic import opened_topic
from frazil.cli.target.queries import Question, answered
from frazil.cli.telemetry import places
from frazil.cli.telemetry.log_filter import LogFilter, parse_severity, severity_shown
from frazil.cli.telemetry.places import DEFAULT_DATASET, DatasetPlace, find_place, parse_since
from frazil.cli.terminal import formats, options, output
from frazil.cli.terminal.streams import write_lines
from frazil.core.extras import needs

if TYPE_CHECKING:
    import pyarrow as pa

app = typer.Typer(no_args_is_help=True, help="Show and follow log records.")

LAST_MAX = 1_000_000
_MAPS = ("log_attributes", "resource_attributes")
COLUMNS = (
    *("timestamp", "time_unix_nano", "observed_time_unix_nano", "severity_number", "severity_text", "service_name"),
    *("body", "body_type", "event_name", "trace_id", "span_id", "scope_name", *_MAPS, "_offset", "_index"),
)


@app.command()
def tail(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new records, until Ctrl-C.")] = False,
    service: Annotated[str | None, typer.Option("--service", metavar="NAME", help="Only those of this one.")] = None,
    severity: Annotated[
        str | None,
        typer.Option("--severity", metavar="LEVEL", help="At least trace, debug, info, warn, error or fatal."),
    ] = None,
    text: Annotated[str | None, typer.Option("--text", metavar="TEXT", help="Only those whose body has it.")] = None,
    since: places.Since = None,
    last: Annotated[int, typer.Option("--last", "-n", min=0, max=LAST_MAX, help="How many to begin with.")] = 20,
    tenant: places.Tenant = None,
    dataset: places.Dataset = DEFAULT_DATASET,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Print the last records by their time; with -f also new ones, in the order in which they come."""
    chosen = LogFilter(service, parse_severity(severity), text, parse_since(since))
    place = find_place(tenant, dataset, server, data, config)
    if not follow:
        _print_last(place, chosen, last, None, as_json, server, data, config)
        return
    from frazil.telemetry.signals import Signal

    with opened_topic(place.topic(Signal.LOGS), server, data, config) as topic:
        reader = topic.read_batches("latest", follow=True)
        try:
            _print_last(place, chosen, last, reader.offset, as_json, server, data, config)
            for rows in _decoded(place, reader):
                write_lines(_lines(chosen.kept(rows), as_json))
        finally:
            reader.close()


def last_statement(place: DatasetPlace, chosen: LogFilter, last: int, end: int | None) -> str:
    """Return the query of the last records whose requests are below `end`: the live ones begin there."""
    order = "ORDER BY timestamp DESC, _offset DESC, _index DESC"
    where = chosen.condition() + ("" if end is None else f" AND _offset < {end}")
    columns = ", ".join(COLUMNS)
    return f"SELECT {columns} FROM {place.table('logs')} WHERE {where} {order} LIMIT {last}"  # noqa: S608 - quoted


def _print_last(place: DatasetPlace, chosen: LogFilter, last: int, end: int | None, as_json: bool, *where: Any) -> None:
    if not last:
        return
    from frazil.telemetry.signals import Signal

    statement = last_statement(place, chosen, last, end)
    with answered(Question(statement), *where, topic=place.topic(Signal.LOGS)) as rows:
        batches = list(rows.batches)
    for batch in reversed(batches):
        write_lines(reversed(list(_lines(batch, as_json))))


def _decoded(place: DatasetPlace, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the records of new requests. Prints how many requests cannot be decoded."""
    with needs():
        from frazil.telemetry.decode import decode_parts
    from frazil.telemetry.signals import Signal

    for batch in batches:
        columns = (batch.column(name) for name in ("request", "_offset", "_append_time"))
        for part in decode_parts(Signal.LOGS, *columns):
            if part.errors.num_rows:
                undecoded = output.plural(part.errors.num_rows, "request")
                output.say(f"{undecoded} can't be decoded; see the table {place.table('logs__errors')}")
            yield part.rows["logs"].select(list(COLUMNS))


def _lines(rows: pa.RecordBatch, as_json: bool) -> Iterator[bytes]:
    for row in formats.batch_rows(rows):
        for name in _MAPS:
            row[name] = dict(row[name] or ())
        yield (output.json_line(formats.json_value(row)) if as_json else _line(row)).encode() + b"\n"


def _line(row: dict[str, Any]) -> str:
    """Senders choose the texts, so control characters are escaped."""
    words = [
        output.iso_time(row["timestamp"]),
        f"{output.fact_shown(severity_shown(row['severity_number'], row['severity_text'])):<5}",
        output.fact_shown(row["service_name"]) or "-",
        output.fact_shown(row["body"]),
        *(f"{output.fact_shown(key)}={output.fact_shown(value)}" for key, value in row["log_attributes"].items()),
    ]
    if row["trace_id"]:
        words.append(f"trace={output.fact_shown(row['trace_id'])}")
    return " ".join(words)
