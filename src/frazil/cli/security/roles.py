"""`frazil roles`: list, show, set and delete roles. Asks the server, or works on the folder if none runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from frazil.cli.target.access import access_admin
from frazil.cli.terminal import options, output
from frazil.core.errors import InvalidInput

app = typer.Typer(no_args_is_help=True, help="List, show, set and delete roles.")

RoleArgument = Annotated[str, typer.Argument(metavar="ROLE", help="Its name.")]


@app.command("list")
def list_(
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """List the built-in roles and those that were created."""
    with access_admin(server, data, config) as admin:
        found = admin.roles()
    if as_json:
        output.print_json(found)
    else:
        output.print_dicts(("name", "built_in", "rules"), [{**one, "rules": len(one["rules"])} for one in found])


@app.command()
def show(
    role: RoleArgument,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Show the rules of a role."""
    with access_admin(server, data, config) as admin:
        _print_role(admin.role(role), as_json)


@app.command("set")
def set_(
    role: RoleArgument,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help='A JSON list of rules ("-" is stdin): [{"effect": "allow", "actions": ["read"], "kind": "topic", '
            '"pattern": "/shop/*"}].',
        ),
    ],
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Create a role, or replace its rules: effective within a second."""
    rules = _rules(file)
    with access_admin(server, data, config) as admin:
        _print_role(admin.set_role(role, rules), as_json)


@app.command()
def delete(
    role: RoleArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Even if it denies something to callers whose tokens name it.")
    ] = False,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Delete a role that has no bindings."""
    with access_admin(server, data, config) as admin:
        found = admin.delete_role(role, force=force)
    if as_json:
        output.print_json(found)
    else:
        print(f"deleted role {role}")


def _print_role(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.print_json(found)
    else:
        output.print_dicts(("effect", "actions", "kind", "pattern"), found["rules"])


def _rules(file: Path) -> list[dict[str, Any]]:
    try:
        read = json.loads(sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"FILE: cannot read {file}: {error.strerror}", field="file") from None
    except ValueError as error:
        raise InvalidInput(f"FILE: {file} is not JSON: {error}", field="file") from None
    rules = read.get("rules") if isinstance(read, dict) else read
    if not isinstance(rules, list):
        raise InvalidInput('FILE: must hold a list of rules, or an object with "rules"', field="file")
    return rules
