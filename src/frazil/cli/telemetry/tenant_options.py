"""Options that set what applies to a tenant, and their values as the API takes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from frazil.cli.terminal.quantities import parse_bytes, parse_duration_ms
from frazil.core.errors import InvalidInput

NONE = "none"
"""Restores what the settings say."""
_LIFT = re.compile(r"(resource|scope|item):(.+)=([a-z0-9_]+)(?::(string|int64|double|bool))?")


def _option(name: str, metavar: str, about: str) -> Any:
    return typer.Option(name, metavar=metavar, help=f"{about}; none: as in the settings.")


Requests = Annotated[str | None, _option("--requests-per-second", "N", "Requests per second")]
Bytes = Annotated[str | None, _option("--bytes-per-second", "SIZE", "Bytes per second, as 10MiB")]
Connections = Annotated[str | None, _option("--connections", "N", "Concurrent streams")]
Stored = Annotated[str | None, _option("--stored-bytes", "SIZE", "Bytes in its logs, as 50GiB")]
Datasets = Annotated[str | None, _option("--datasets", "N", "Datasets")]
Tables = Annotated[str | None, _option("--tables", "N", "Tables of all its datasets")]
RetentionAge = Annotated[str | None, _option("--retention-age", "TIME", "Its logs keep rows for this time, as 7d")]
RetentionBytes = Annotated[str | None, _option("--retention-bytes", "SIZE", "Each of its logs keeps this much")]
Freshness = Annotated[str | None, _option("--freshness", "TIME", "Rows are in its tables after about this time")]
FileSize = Annotated[str | None, _option("--target-file-size", "SIZE", "Rows are moved when they fill such a file")]
Lift = Annotated[
    list[str] | None,
    typer.Option(
        "--lift",
        metavar="SOURCE:KEY=COLUMN[:TYPE]",
        help="An attribute that has its own column, as resource:k8s.pod.name=pod. Give all of them; none: no more.",
    ),
]


def given_settings(
    *,
    requests_per_second: str | None,
    bytes_per_second: str | None,
    connections: str | None,
    stored_bytes: str | None,
    datasets: str | None,
    tables: str | None,
    retention_age: str | None,
    retention_bytes: str | None,
    freshness: str | None,
    target_file_size: str | None,
    lift: Sequence[str] | None,
) -> dict[str, Any]:
    """Return what was given, in the form of the API."""
    wanted: dict[str, tuple[str | None, str, Callable[[str, str], int]]] = {
        "requests_per_second": (requests_per_second, "--requests-per-second", _number),
        "bytes_per_second": (bytes_per_second, "--bytes-per-second", parse_bytes),
        "connections": (connections, "--connections", _number),
        "stored_bytes": (stored_bytes, "--stored-bytes", parse_bytes),
        "datasets": (datasets, "--datasets", _number),
        "tables": (tables, "--tables", _number),
        "freshness_ms": (freshness, "--freshness", parse_duration_ms),
        "target_file_bytes": (target_file_size, "--target-file-size", parse_bytes),
    }
    given: dict[str, Any] = {
        name: None if text == NONE else parse(text, option)
        for name, (text, option, parse) in wanted.items()
        if text is not None
    }
    if retention_age is not None or retention_bytes is not None:
        age = None if retention_age in (None, NONE) else parse_duration_ms(retention_age or "", "--retention-age")
        size = None if retention_bytes in (None, NONE) else parse_bytes(retention_bytes or "", "--retention-bytes")
        given["retention"] = None if age is None and size is None else {"age_ms": age, "bytes": size}
    if lift:
        given["lifted"] = None if list(lift) == [NONE] else [_lifted(one) for one in lift]
    return given


def _number(text: str, option: str) -> int:
    if not text.isdecimal() or not text.isascii() or int(text) == 0:
        raise InvalidInput(f"{option}: {text!r} is not a whole number above 0", option=option)
    return int(text)


def _lifted(text: str) -> dict[str, str]:
    found = _LIFT.fullmatch(text)
    if found is None:
        raise InvalidInput(
            f"--lift: {text!r} is not like resource:k8s.pod.name=pod or item:http.status_code=status:int64",
            option="--lift",
        )
    return {"source": found[1], "key": found[2], "column": found[3], "type": found[4] or "string"}
