"""`frazil bindings`: which principal has which role. Asks the server, or works on the folder if none runs."""

from __future__ import annotations

from typing import Annotated

import typer

from frazil.cli.target.access import access_admin
from frazil.cli.terminal import options, output

app = typer.Typer(no_args_is_help=True, help="Bind roles to principals.")

PrincipalArgument = Annotated[str, typer.Argument(metavar="PRINCIPAL", help="Who: key:ID, jwt:SUBJECT or cert:NAME.")]
RoleArgument = Annotated[str, typer.Argument(metavar="ROLE", help="As in frazil roles list.")]
Scope = Annotated[str, typer.Option("--scope", metavar="PATTERN", help="Where the role applies, as /shop/*.")]


@app.command("list")
def list_(
    principal: Annotated[str | None, typer.Option("--principal", metavar="NAME", help="Of this one alone.")] = None,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """List bindings: principal, role and scope."""
    with access_admin(server, data, config) as admin:
        found = admin.bindings(principal)
    if as_json:
        output.print_json(found)
    elif not found:
        output.say("there are no bindings; see frazil bindings add --help")
    else:
        output.print_dicts(("principal", "role", "scope"), found)


@app.command()
def add(
    principal: PrincipalArgument,
    role: RoleArgument,
    scope: Scope = "*",
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Bind a role to a principal: effective within a second."""
    with access_admin(server, data, config) as admin:
        made = admin.bind(principal, role, scope)
    if as_json:
        output.print_json(made)
    else:
        print(f"{principal} has the role {role} on {scope}")


@app.command()
def remove(
    principal: PrincipalArgument,
    role: RoleArgument,
    scope: Scope = "*",
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Remove a binding: effective within a second, also for open streams."""
    with access_admin(server, data, config) as admin:
        gone = admin.unbind(principal, role, scope)
    if as_json:
        output.print_json(gone)
    else:
        print(f"{principal} no longer has the role {role} on {scope}")
