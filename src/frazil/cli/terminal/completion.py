"""Shell completion of names, from the named server, else from the folder or its owner.

A shell cannot show an error while completing, so on any error there are no suggestions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import typer

from frazil.cli.target.folder import settings_on_disk
from frazil.cli.target.server import Server, find_server, named_server, topic_path
from frazil.core.disk import LocalDisk
from frazil.core.errors import FrazilError
from frazil.log.folder.layout import topic_names

CALL_SECONDS_MAX = 1.0


def topics(context: typer.Context, incomplete: str) -> list[str]:
    """Reads the folder first: it is faster than asking its owner."""
    found: list[str] = []
    with contextlib.suppress(FrazilError, OSError):
        named = named_server(context.params.get("server"), context.params.get("data"), context.params.get("config"))
        if named is not None:
            found = [one["topic"] for one in _quick(named).get("/v1/topics", limit=1_000)["items"]]
        else:
            settings = settings_on_disk(context.params.get("data"), context.params.get("config"))
            found = [str(name) for name in topic_names(LocalDisk(), settings.log_folder)]
    return _fitting(found, incomplete)


def subscriptions(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the subscriptions of the topic argument."""
    found: list[str] = []
    with contextlib.suppress(FrazilError, OSError):
        topic = context.params.get("topic")
        for server in _servers(context) if topic else ():
            path = topic_path(str(topic), "subscriptions")
            found = [one["subscription"] for one in server.get(path, limit=1_000)["items"]]
    return _fitting(found, incomplete)


def subjects(context: typer.Context, incomplete: str) -> list[str]:
    found: list[str] = []
    with contextlib.suppress(FrazilError, OSError):
        for server in _servers(context):
            found = [one["subject"] for one in server.get("/v1/schemas", limit=1_000)["items"]]
    return _fitting(found, incomplete)


def _servers(context: typer.Context) -> Iterator[Server]:
    """Return one server, or none."""
    params = context.params
    found = find_server(params.get("server"), params.get("data"), params.get("config"))
    if found is not None:
        yield _quick(found)


def _quick(server: Server) -> Server:
    return server.quick(CALL_SECONDS_MAX)


def _fitting(found: list[str], incomplete: str) -> list[str]:
    return [name for name in found if name.startswith(incomplete) and name.isprintable()]
