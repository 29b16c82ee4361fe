"""Optional packages: which extra of `frazil` installs a module, and errors that say so.

The package alone is a client and an embedded log. What needs more imports its modules inside `needs(...)`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from frazil.core.errors import FrazilError, LakeUnavailable

EXTRAS = {
    "duckdb": "sql",
    "opentelemetry": "traces",
    "pyspark": "spark",
    "pandas": "spark",
    "boto3": "glue",
    "psycopg2": "postgres",
    "pyiceberg": "lake",
    "sqlalchemy": "lake",
    "fsspec": "lake",
    "grpc_tools": "protobuf",
}
"""By top-level module. Everything else that may be missing is part of `server`."""


def install_hint(module: str | None) -> str:
    """The command that installs a missing module."""
    extra = EXTRAS.get((module or "").partition(".")[0], "server")
    return f"{module} is not installed: pip install 'frazil[{extra}]'"


def is_our_own(error: ModuleNotFoundError) -> bool:
    """A module of Frazil's own that is not there is a mistake of ours."""
    return (error.name or "").partition(".")[0] == "frazil"


def lake_unavailable(hint: str) -> FrazilError:
    """The lake's own error, for readers and guards that must keep rows while it is away."""
    return LakeUnavailable("catalog", *hint.split(": ", 1))


@contextlib.contextmanager
def needs(error: Callable[[str], Exception] = lake_unavailable) -> Iterator[None]:
    """Imports in this block that find no module raise `error` with the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if is_our_own(missing):
            raise
        raise error(install_hint(missing.name)) from None
