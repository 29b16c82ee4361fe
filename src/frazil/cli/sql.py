"""`frazil sql`: an SQL query over the tables and the rows that are not moved yet."""

from __future__ import annotations

import csv
import io
import itertools
import resource
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.target.queries import Question, Rows, answered
from frazil.cli.target.with_parent import end_with_stdin, read_stdin
from frazil.cli.terminal import formats, options, output
from frazil.core.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_SHOWN = 1_000
DATA_MIB_MAX = 1_792
"""The kernel's memory limit of a query process: `repeat` and others use memory that DuckDB's limit does not count."""


def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="One SELECT; /shop/orders is shop.orders.")],
    snapshot: Annotated[int | None, typer.Option("--snapshot", help="The tables as of this snapshot.")] = None,
    at: Annotated[str | None, typer.Option("--at", metavar="TIME", help="The tables as of a time, ISO 8601.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, with a heading.")] = False,
    as_arrow: Annotated[bool, typer.Option("--arrow", hidden=True)] = False,
    while_stdin: options.WhileStdin = False,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Run an SQL query (DuckDB's dialect). A message is visible as soon as it was acknowledged, moved or not."""
    if (snapshot is not None) + (at is not None) > 1:
        raise InvalidInput("give --snapshot or --at, not both")
    if as_csv and as_json:
        raise InvalidInput("give --csv or --json, not both")
    asked = Question(query, snapshot, _time(at))
    if while_stdin:
        _limit_process()
        if query == "-":
            asked = _asked_by_parent(asked)
        end_with_stdin()
    with answered(asked, server, data, config, confined=while_stdin) as rows:
        _print(rows, as_json, as_csv, as_arrow)


def _asked_by_parent(asked: Question) -> Question:
    """Read the query and what its caller may do, as `SqlProcess` sends them. They must be there: no rules mean all."""
    from frazil.node.tiers.cluster_logs import ForwardedCaller

    given = read_stdin()
    if not isinstance(given, dict) or given.keys() != {"sql", "rules", "forwarded"}:
        raise InvalidInput("stdin has no query with the rules of its caller")
    forwarded = None if given["forwarded"] is None else ForwardedCaller(**given["forwarded"])
    return asked._replace(sql=str(given["sql"]), rules=given["rules"], forwarded=forwarded)


def _limit_process() -> None:
    """For a query from a server's client: limit the memory, and disable core files, which would contain rows."""
    given = resource.getrlimit(resource.RLIMIT_DATA)[1]
    limit = DATA_MIB_MAX << 20
    limit = limit if given == resource.RLIM_INFINITY else min(limit, given)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _print(answer: Rows, as_json: bool, as_csv: bool, as_arrow: bool) -> None:
    if as_arrow:
        _write_arrow(answer)
    elif as_json:
        for row in _rows(answer):
            output.print_json({name: formats.json_value(value) for name, value in row.items()})
    elif as_csv:
        _print_csv(answer)
    else:
        _print_table(answer)


def _write_arrow(answer: Rows) -> None:
    """Write Arrow for a server, which forwards it. Enum values are written as plain values, not dictionary indices."""
    import pyarrow as pa

    kinds = [(one, one.type.value_type if pa.types.is_dictionary(one.type) else one.type) for one in answer.schema]
    plain = pa.schema([field.with_type(kind) for field, kind in kinds])
    for field in plain:
        if "dictionary<" in str(field.type):
            raise InvalidInput(f"sql: column {field.name!r} holds an enum within {field.type}; cast it to VARCHAR")
    with pa.ipc.new_stream(sys.stdout.buffer, plain) as writer:
        for batch in answer.batches:
            writer.write_batch(batch if batch.schema.equals(plain) else batch.cast(plain))
            sys.stdout.buffer.flush()


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"--at: {text!r} is not a time; write 2026-05-01T12:00:00Z") from None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def _rows(answer: Rows) -> Iterator[dict[str, Any]]:
    for batch in answer.batches:
        yield from formats.batch_rows(batch)


def _print_csv(answer: Rows) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(answer.schema.names)
    for batch in answer.batches:
        writer.writerows([_cell(value) for value in row.values()] for row in formats.batch_rows(batch))
        sys.stdout.write(text.getvalue())
        text.seek(0)
        text.truncate()
    sys.stdout.write(text.getvalue())


def _print_table(answer: Rows) -> None:
    rows = _rows(answer)
    shown = [[_cell(value) for value in row.values()] for row in itertools.islice(rows, ROWS_SHOWN)]
    numbers = [field.name for field in answer.schema if _is_number(field.type)]
    output.print_table(answer.schema.names, shown, right=numbers)
    if next(rows, None) is not None:
        output.say(f"only the first {ROWS_SHOWN} rows are shown; use LIMIT, --json or --csv")


def _cell(value: Any) -> Any:
    found = formats.json_value(value)
    return output.json_line(found) if isinstance(found, dict | list) else found


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
