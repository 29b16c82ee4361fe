"""Tables for people, JSON for scripts. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from frazil.cli.terminal.streams import print_error

if TYPE_CHECKING:
    from rich.console import Console

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def print_json(data: Any) -> None:
    print(json_line(data))


def json_line(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, default=str)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = ()) -> None:
    """Print a table; columns in `right` are numbers. In a pipe, a table is as wide as needed."""
    from frazil.cli.terminal.tables import print_cells

    print_cells(headings, ([_shown(cell) for cell in row] for row in rows), right)


def print_dicts(names: Sequence[str], found: Iterable[Mapping[str, Any]], *, right: Sequence[str] = ()) -> None:
    """Print fields of JSON objects as a table."""
    headings = [heading(name) for name in names]
    rows = [[fact_shown(one[name]) for name in names] for one in found]
    print_table(headings, rows, right=[heading(name) for name in right])


def print_pairs(pairs: Iterable[tuple[str, Any]]) -> None:
    for name, value in pairs:
        print(f"{name + ':':<15} {_shown(value)}")


def print_facts(found: Mapping[str, Any]) -> None:
    """Print the fields of one JSON object, one per line."""
    print_pairs((heading(name), fact_shown(value)) for name, value in found.items())


def say(text: str) -> None:
    """Print a remark to stderr. If nobody reads it, the work continues."""
    print_error(text)


def stderr_console() -> Console:
    from frazil.cli.terminal.tables import Remarks

    return Remarks(stderr=True, highlight=False)


def bytes_shown(count: int | None) -> str:
    if count is None:
        return "-"
    size = float(count)
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("the last unit takes all")


def time_shown(time_us: int | None) -> str:
    return "-" if time_us is None else iso_time(_EPOCH + timedelta(microseconds=time_us))


def iso_time(time: datetime) -> str:
    return time.astimezone(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


def plural(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def heading(name: str) -> str:
    return name.replace("_", " ")


def fact_shown(value: Any) -> str:
    """Format one field of a JSON object, with control characters escaped: names may contain anything."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(fact_shown, value)) or "-"
    if value is None:
        return "-"
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in str(value))


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)
