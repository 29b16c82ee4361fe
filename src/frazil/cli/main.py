"""The command line: verbs in groups, one line for every error, and an exit code that scripts can use.

0 done · 1 failed · 2 the call was wrong · 3 not found · 4 try later · 5 corrupt or failed log · 6 folder in use ·
7 no server · 130 interrupted
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence

import pyarrow as pa
import typer
import typer.main

import frazil
from frazil.cli import (
    clients,
    consume,
    dead_letters,
    doctor,
    generate,
    log,
    options,
    output,
    pipeline,
    produce,
    schemas,
    serve,
    sql,
    subscriptions,
    table,
    top,
    topics,
    verify,
)
from frazil.core.errors import (
    CorruptLog,
    FolderInUse,
    FrazilError,
    InvalidInput,
    JobNotFound,
    LogFailed,
    SchemaNotFound,
    ServerNeeded,
    ServerUnreachable,
    SubscriptionNotFound,
    TableNotFound,
    TopicNotFound,
    TryLater,
)

app = typer.Typer(
    name="frazil",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Frazil: a streaming log whose history is an Apache Iceberg table.",
)
app.add_typer(topics.app, name="topics")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.add_typer(subscriptions.app, name="subscriptions")
app.add_typer(clients.producers_app, name="producers")
app.add_typer(clients.consumers_app, name="consumers")
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(schemas.app, name="schemas")
app.add_typer(log.app, name="log")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(table.app, name="table")
app.command("sql")(sql.sql)
app.command("verify")(verify.verify)
app.command("top")(top.top)
app.command("doctor")(doctor.doctor)
app.command("serve")(serve.serve)
app.add_typer(generate.app, name="generate")

_EXIT_CODES: tuple[tuple[type[FrazilError], int], ...] = (
    (InvalidInput, 2),
    (TopicNotFound, 3),
    (SubscriptionNotFound, 3),
    (TableNotFound, 3),
    (JobNotFound, 3),
    (SchemaNotFound, 3),
    (TryLater, 4),
    (CorruptLog, 5),
    (LogFailed, 5),
    (FolderInUse, 6),
    (ServerNeeded, 7),
    (ServerUnreachable, 7),
)


@app.command()
def version(
    data: options.Data = None,  # noqa: ARG001 - every verb takes these two, so that a wrapper may always add them
    config: options.Config = None,  # noqa: ARG001
    as_json: options.Json = False,
) -> None:
    """Print the version of Frazil and of what it stands on."""
    versions = {"frazil": frazil.__version__, "python": platform.python_version(), "pyarrow": pa.__version__}
    if as_json:
        output.print_json(versions)
    else:
        print(" ".join(f"{name} {number}" for name, number in versions.items()))


def run() -> None:
    """The console script."""
    code = main(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_stdout()
    sys.exit(code)


def main(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; never a traceback for what a user or the world did wrong."""
    as_json = "--json" in arguments or "--log-json" in arguments
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
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _forget_stdout()
        return 0
    except OSError as error:
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
    print(line, file=sys.stderr)


def _forget_stdout() -> None:
    """The reader of our output has gone: that is its right. What is still buffered must not raise at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
