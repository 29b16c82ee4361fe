"""`frazil sql`: a question in SQL, answered over the tables and what is not yet in them."""

from __future__ import annotations

import csv
import io
import itertools
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli import formats, options, output
from frazil.core.errors import InvalidInput, LakeUnavailable

if TYPE_CHECKING:
    import pyarrow as pa

    from frazil.topics.sql import Answer

ROWS_SHOWN = 1_000


def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="One SELECT; /shop/orders is shop.orders.")],
    snapshot: Annotated[int | None, typer.Option("--snapshot", help="The tables as of this snapshot.")] = None,
    at: Annotated[str | None, typer.Option("--at", metavar="TIME", help="The tables as of a time, ISO 8601.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, with a heading.")] = False,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Ask in SQL (DuckDB's). A message can be asked for as soon as it was acknowledged, moved or not."""
    if (snapshot is not None) + (at is not None) > 1:
        raise InvalidInput("give --snapshot or --at, not both")
    if as_csv and as_json:
        raise InvalidInput("give --csv or --json, not both")
    settings = options.settings_on_disk(data, config)
    try:
        from frazil.topics.logs import open_view
        from frazil.topics.sql import AsOf, SqlSession
    except ModuleNotFoundError as error:
        raise LakeUnavailable("catalog", f"{error.name} is not installed: install frazil[lake]") from None
    with open_view(settings) as logs, SqlSession(settings, logs, AsOf(snapshot, _time(at))) as session:
        answer = session.run(query)
        if as_json:
            for row in _rows(answer):
                output.print_json({name: formats.json_value(value) for name, value in row.items()})
        elif as_csv:
            _print_csv(answer)
        else:
            _print_table(answer)


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"--at: {text!r} is not a time; write 2026-05-01T12:00:00Z") from None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def _rows(answer: Answer) -> Iterator[dict[str, Any]]:
    for batch in answer.batches:
        yield from formats.batch_rows(batch)


def _print_csv(answer: Answer) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(answer.schema.names)
    for batch in answer.batches:
        writer.writerows([_cell(value) for value in row.values()] for row in formats.batch_rows(batch))
        sys.stdout.write(text.getvalue())
        text.seek(0)
        text.truncate()
    sys.stdout.write(text.getvalue())


def _print_table(answer: Answer) -> None:
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
