"""`frazil keys`: create, list, rotate and revoke API keys. Asks the server, or works on the folder if none runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from frazil.cli.target.access import access_admin
from frazil.cli.terminal import options, output
from frazil.cli.terminal.quantities import parse_duration_ms

app = typer.Typer(no_args_is_help=True, help="Create, list, rotate and revoke API keys.")

KeyArgument = Annotated[str, typer.Argument(metavar="ID", help="The id: the part of the key after frz_.")]


@app.command("list")
def list_(
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """List API keys, without their secrets."""
    with access_admin(server, data, config) as admin:
        found = admin.keys()
    if as_json:
        output.print_json(found)
    elif not found:
        output.say("there are no keys; see frazil keys create --help")
    else:
        times = ("created", "expires", "rotated")
        shown = [one | {name: output.time_shown(one[f"{name}_us"]) for name in times} for one in found]
        output.print_dicts(("id", "owner", "description", *times), shown)


@app.command()
def create(
    owner: Annotated[str, typer.Argument(metavar="OWNER", help="Who uses the key.")],
    description: Annotated[str, typer.Option("--description", help="For people.")] = "",
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="TIME", help="It expires after this time, as 90d.")
    ] = None,
    role: Annotated[str | None, typer.Option("--role", metavar="ROLE", help="Bind this role to the key.")] = None,
    scope: Annotated[str, typer.Option("--scope", metavar="PATTERN", help="With --role: where it applies.")] = "*",
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Make an API key and print it. It is shown only once."""
    lifetime_ms = None if expires is None else parse_duration_ms(expires, "--expires")
    with access_admin(server, data, config) as admin:
        if role is not None:
            admin.role(role)  # before the key is made
        made = admin.create_key(owner, description, lifetime_ms)
        _print_key(made, as_json)  # even if the binding fails
        if role is not None:
            admin.bind(made["principal"], role, scope)
    if not as_json:
        has = f"has the role {role}" if role else f"has no rights yet: frazil bindings add {made['principal']} ROLE"
        output.say(f"{made['principal']} {has}")


@app.command()
def rotate(
    key_id: KeyArgument,
    overlap: Annotated[
        str | None, typer.Option("--overlap", metavar="TIME", help="The old secret stays valid this long, as 1d.")
    ] = None,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Give a key a new secret and print the key. Its rights stay; without --overlap the old secret ends at once."""
    overlap_ms = 0 if overlap is None else parse_duration_ms(overlap, "--overlap")
    with access_admin(server, data, config) as admin:
        _print_key(admin.rotate_key(key_id, overlap_ms), as_json)


@app.command()
def revoke(
    key_id: KeyArgument,
    yes: options.Yes = False,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Delete a key and its bindings. Its calls and streams are refused within a second."""
    with access_admin(server, data, config) as admin:
        if not yes:
            typer.confirm(f"Revoke the key {key_id} for good?", abort=True, err=True)
        found = admin.revoke_key(key_id)
    if as_json:
        output.print_json(found)
    else:
        print(f"revoked key {key_id}")


def _print_key(made: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.print_json(made)
    else:
        print(made["key"])
    output.say("keep the key: it is shown only once")
