"""`frazil namespaces`: list, create and delete namespaces. Asks the server."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from frazil.cli.target.server import need_server
from frazil.cli.terminal import options, output

app = typer.Typer(no_args_is_help=True, help="List, create and delete namespaces.")

NamespaceArgument = Annotated[str, typer.Argument(metavar="NAMESPACE", help="The first part of a topic's name.")]


@app.command("list")
def list_(
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """List namespaces: `default`, those with topics, and those that were created."""
    found = need_server(server, data, config).all("/v1/namespaces")
    if as_json:
        output.print_json(found)
    else:
        for name in found:
            print(name)


@app.command()
def create(
    namespace: NamespaceArgument,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Create a namespace without topics. Creating a topic also creates its namespace."""
    made = need_server(server, data, config).post("/v1/namespaces", {"namespace": namespace})
    if as_json:
        output.print_json(made)
    else:
        print(f"created namespace {made['namespace']}")


@app.command()
def delete(
    namespace: NamespaceArgument,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Delete a namespace that has no topics."""
    gone = need_server(server, data, config).delete(f"/v1/namespaces/{quote(namespace, safe='')}")
    if as_json:
        output.print_json(gone)
    else:
        print(f"deleted namespace {gone['namespace']}")
