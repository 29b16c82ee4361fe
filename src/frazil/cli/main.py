"""The command line: verbs in groups, one line for every error, and an exit code for scripts.

0 done · 1 failed · 2 the call was wrong · 3 not found · 4 try later · 5 corrupt or failed log · 6 folder in use · 7 no
server · 130 interrupted
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
import typer.main

import frazil
from frazil.cli.terminal import output, streams
from frazil.cli.verbs import Verbs
from frazil.core.errors import (
    CorruptLog,
    DatasetNotFound,
    FolderInUse,
    FrazilError,
    GrantNotFound,
    InvalidInput,
    JobNotFound,
    LogFailed,
    MetadataInUse,
    NotInstalled,
    SchemaNotFound,
    ServerNeeded,
    ServerUnreachable,
    SubscriptionNotFound,
    TableNotFound,
    TenantNotFound,
    TopicNotFound,
    TraceNotFound,
    TryLater,
)
from frazil.core.extras import install_hint, is_our_own

app = typer.Typer(name="frazil", cls=Verbs, no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"frazil {frazil.__version__}")
        raise typer.Exit


@app.callback()
def _all_verbs(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Frazil: a streaming log whose history is an Apache Iceberg table."""


_EXIT_CODES: tuple[tuple[type[FrazilError], int], ...] = (
    (InvalidInput, 2),
    (TopicNotFound, 3),
    (SubscriptionNotFound, 3),
    (TableNotFound, 3),
    (JobNotFound, 3),
    (SchemaNotFound, 3),
    (GrantNotFound, 3),
    (TenantNotFound, 3),
    (DatasetNotFound, 3),
    (TraceNotFound, 3),
    (TryLater, 4),
    (CorruptLog, 5),
    (LogFailed, 5),
    (FolderInUse, 6),
    (MetadataInUse, 6),
    (ServerNeeded, 7),
    (ServerUnreachable, 7),
)


def run() -> None:
    """The console script."""
    streams.open_all()
    arguments = sys.argv[1:]
    code = main(arguments)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        streams.forget_stdout()
    except OSError as error:
        _tell(
            FrazilError(f"the answer could not be written: {error.strerror}", errno=error.errno), _wants_json(arguments)
        )
        streams.forget_stdout()
        code = code or 1
    sys.exit(code)


def _wants_json(arguments: Sequence[str]) -> bool:
    return "--json" in arguments or "--log-json" in arguments


def main(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; user and environment errors never show a traceback."""
    as_json = _wants_json(arguments)
    try:
        return _invoke(arguments)
    except FrazilError as error:
        _tell(error, as_json)
        return exit_code(error)
    except typer.TyperException as error:
        text = error.format_message() if hasattr(error, "format_message") else str(error)
        if text:  # a group without a verb has printed its help instead
            _tell(InvalidInput(f"{text.rstrip('.')}; see frazil --help"), as_json)
        return 2
    except typer.Abort:
        _tell(FrazilError("nothing was done: it was not confirmed (answer y, or give --yes)"), as_json)
        return 1
    except ModuleNotFoundError as error:
        if is_our_own(error):
            raise
        _tell(NotInstalled(install_hint(error.name)), as_json)
        return 1
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if isinstance(error, BrokenPipeError) and streams.reader_is_gone():
            streams.forget_stdout()
            return 0
        where = f"{error.filename}: " if error.filename else ""
        _tell(FrazilError(f"{where}{error.strerror or error}", errno=error.errno), as_json)
        return 1


def exit_code(error: FrazilError) -> int:
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 1)


def _invoke(arguments: Sequence[str]) -> int:
    command = typer.main.get_command(app)
    if "_FRAZIL_COMPLETE" in os.environ:
        command.main(list(arguments), prog_name="frazil")
    try:
        with command.make_context("frazil", list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    return 0


def _tell(error: FrazilError, as_json: bool) -> None:
    line = output.json_line(error.as_dict()) if as_json else f"error: {' '.join(error.message.split())}"
    streams.print_error(line)
