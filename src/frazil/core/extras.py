"""Optional packages: maps a module to the extra of `frazil` that installs it, and raises errors that say so.

The bare package is a client and an embedded log. Code that needs more imports its modules inside `needs(...)`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from frazil.core.errors import FrazilError, LakeUnavailable

EXTRAS = {
    "duckdb": "sql",
    "opentelemetry": "traces",
    "opentelemetry.proto": "telemetry",
    "pyspark": "spark",
    "pandas": "spark",
    "boto3": "glue",
    "psycopg2": "postgres",
    "pyiceberg": "lake",
    "sqlalchemy": "lake",
    "fsspec": "lake",
    "obstore": "objects",
    "grpc_tools": "protobuf",
    "ptars": "telemetry",
}
"""Extra by module; the longest name that fits counts. Every other optional module is part of `server`."""


def install_hint(module: str | None) -> str:
    """Return the command that installs a missing module."""
    parts = (module or "").split(".")
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    extra = next((EXTRAS[name] for name in names if name in EXTRAS), "server")
    return f"{module} is not installed: pip install 'frazil[{extra}]'"


def is_our_own(error: ModuleNotFoundError) -> bool:
    """Whether the missing module is one of Frazil's own, which is a bug."""
    return (error.name or "").partition(".")[0] == "frazil"


def lake_unavailable(hint: str) -> FrazilError:
    """Return the lake's error, for readers and guards that must keep rows while the lake is unavailable."""
    return LakeUnavailable("catalog", *hint.split(": ", 1))


@contextlib.contextmanager
def needs(error: Callable[[str], Exception] = lake_unavailable) -> Iterator[None]:
    """Context in which a missing module raises `error` with the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if is_our_own(missing):
            raise
        raise error(install_hint(missing.name)) from None
