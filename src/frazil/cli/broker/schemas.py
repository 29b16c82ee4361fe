"""`frazil schemas`: subjects, their versions, and the validation policy of each topic. Asks the server."""

from __future__ import annotations

import getpass
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from frazil.cli.target.server import need_server, topic_path
from frazil.cli.terminal import completion, options, output
from frazil.core.errors import InvalidInput

app = typer.Typer(no_args_is_help=True, help="Show schemas, register and check them, and assign them to topics.")


class SchemaTypeOption(StrEnum):
    AVRO = "avro"
    JSON_SCHEMA = "json_schema"
    PROTOBUF = "protobuf"
    STRING = "string"
    NUMBER = "number"
    BYTES = "bytes"


class Mode(StrEnum):
    NONE = "none"
    BACKWARD = "backward"
    FORWARD = "forward"
    FULL = "full"


class PolicyOption(StrEnum):
    NONE = "none"
    WARN = "warn"
    ENFORCE = "enforce"


Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help="Its name.", autocompletion=completion.subjects)]
File = Annotated[Path, typer.Argument(metavar="FILE", help="The definition ('-' is stdin).")]
Type = Annotated[SchemaTypeOption, typer.Option("--type", help="The type of the definition.")]


def _path(subject: str, *more: str) -> str:
    return "/".join(["/v1/schemas", quote(subject, safe=""), *more])


@app.command("list")
def list_(
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """List all subjects."""
    found = need_server(server, data, config).all("/v1/schemas")
    if as_json:
        output.print_json(found)
    elif not found:
        output.say("there are no schemas; see frazil schemas register --help")
    else:
        names = ("subject", "schema_id", "compatibility_mode", "versions")
        output.print_dicts(names, found, right=("schema_id", "versions"))


@app.command()
def show(
    subject: Subject,
    version: Annotated[int | None, typer.Option("--version", min=1, help="Instead of the newest.")] = None,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Print a schema: its definition on stdout, its other fields on stderr."""
    asked = need_server(server, data, config)
    found = asked.get(_path(subject, "latest") if version is None else _path(subject, "versions", str(version)))
    if as_json:
        output.print_json(found)
        return
    known = {**found, "created": output.time_shown(found["created_at_us"])}
    for name in ("subject", "version", "schema_id", "schema_type", "compatibility_mode", "created", "created_by"):
        output.say(f"{output.heading(name) + ':':<20}{output.fact_shown(known[name])}")
    print(found["definition"])


@app.command()
def versions(
    subject: Subject,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """List the versions of a subject."""
    found = need_server(server, data, config).all(_path(subject, "versions"))
    if as_json:
        output.print_json(found)
        return
    shown = [{**one, "created": output.time_shown(one["created_at_us"])} for one in found]
    names = ("version", "schema_id", "fingerprint", "created", "created_by", "description")
    output.print_dicts(names, shown, right=("version", "schema_id"))


@app.command()
def register(
    subject: Subject,
    file: File,
    type_: Type,
    description: Annotated[str, typer.Option("--description", help="For people.")] = "",
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Register a schema as the newest version of its subject, unless the subject has it. The first
    creates the subject.
    """
    body = _definition(file, type_) | {"description": description, "created_by": getpass.getuser()}
    made = need_server(server, data, config).post(_path(subject, "versions"), body)
    if as_json:
        output.print_json(made)
    elif made["is_new_version"]:
        print(f"registered version {made['version']} of {subject}")
    else:
        print(f"{subject} has it already, as version {made['version']}")


@app.command()
def check(
    subject: Subject,
    file: File,
    type_: Type,
    mode: Annotated[Mode | None, typer.Option("--mode", help="Instead of the subject's own.")] = None,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Check whether a schema could be registered, and print every reason why not (code 1). Registers nothing."""
    body: dict[str, Any] = _definition(file, type_) | {"compatibility_mode": mode}
    found = need_server(server, data, config).post(_path(subject, "check"), body)
    if as_json:
        output.print_json(found)
    elif found["compatible"]:
        print(f"it fits {subject}")
    else:
        print(f"it does not fit {subject}:")
        for reason in found["reasons"]:
            print(f"  {output.fact_shown(reason)}")
    if not found["compatible"]:
        raise typer.Exit(1)


@app.command("set-mode")
def set_mode(
    subject: Subject,
    mode: Annotated[Mode, typer.Argument(help="What a new version must be compatible with.")],
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Set the compatibility mode for new versions of a subject."""
    found = need_server(server, data, config).put(_path(subject), {"compatibility_mode": mode})
    if as_json:
        output.print_json(found)
    else:
        print(f"compatibility of {subject}: {found['compatibility_mode']}")


@app.command()
def delete(
    subject: Subject,
    version: Annotated[int, typer.Argument(min=1, help="Its number.")],
    yes: options.Yes = False,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Delete one version of a subject permanently. Its number is not reused."""
    asked = need_server(server, data, config)
    if not yes:
        typer.confirm(f"Delete version {version} of {subject} for good?", abort=True, err=True)
    found = asked.delete(_path(subject, "versions", str(version)))
    if as_json:
        output.print_json(found)
    else:
        print(f"deleted version {version} of {subject}")


@app.command("of-topic")
def of_topic(
    topic: options.TopicArgument,
    subject: Annotated[str | None, typer.Option("--subject", help="Give the topic this subject.")] = None,
    policy: Annotated[
        PolicyOption, typer.Option("--policy", help="With --subject: the policy for messages that do not match.")
    ] = PolicyOption.WARN,
    payloads: Annotated[
        bool, typer.Option("--check-payloads", help="With --subject: validate payloads as well.")
    ] = False,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Show a topic's subject and its policy for invalid messages; or set them, with --subject."""
    asked, path = need_server(server, data, config), topic_path(topic, "schema")
    if subject is None:
        found = asked.get(path)
    else:
        wanted = {"subject": subject, "validation_policy": policy, "enable_payload_validation": payloads}
        found = asked.put(path, wanted)
    if as_json:
        output.print_json(found)
    else:
        output.print_facts(found)


def _definition(file: Path, type_: SchemaTypeOption) -> dict[str, Any]:
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"FILE: cannot read {file}: {error.strerror}", field="file") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"FILE: {file} is not UTF-8 text; give the definition itself", field="file") from None
    return {"schema_type": type_, "definition": text}
