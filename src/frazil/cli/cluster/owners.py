"""`frazil topics owner` and `move`: which broker serves a topic, and its move to another. Any broker answers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from frazil.cli.target.server import Server, need_server, topic_path
from frazil.cli.terminal import options, output
from frazil.core.cluster import flight_address, http_address
from frazil.core.errors import LossNotAccepted, PermissionDenied, ServerUnreachable, TryLater

MOVE_SECONDS_MAX = 600.0
"""What is not uploaded yet is uploaded before a topic moves."""


def owner(
    topic: options.TopicArgument,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Show which broker serves a topic, or each of its partitions."""
    found = need_server(server, data, config).get(topic_path(topic, "owner"))["owners"]
    if as_json:
        output.print_json(found)
    else:
        _print(found)


def move(
    topic: options.TopicArgument,
    to: Annotated[
        str | None, typer.Option("--to", metavar="BROKER", help="To this broker; default: the least loaded one.")
    ] = None,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Even if its broker is gone and has rows that were not uploaded: asks."),
    ] = False,
    yes: options.Yes = False,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Move a topic, or all its partitions, to another broker. It goes on there at the next offset.

    Clients find it there by themselves. Without --accept-loss nothing can be lost.
    """
    asked, path = need_server(server, data, config).quick(MOVE_SECONDS_MAX), topic_path(topic, "move")
    try:
        found = asked.post(path, {"to": to})["owners"]
    except LossNotAccepted as error:
        if not accept_loss:
            raise
        if not yes:
            output.say(f"rows of {error.fields['topic']} that were not uploaded are only on the disk of the broker "
                       f"{error.fields['broker_id']}, which is gone")  # fmt: skip
            typer.confirm("Move it without them? They are lost for good.", abort=True, err=True)
        found = asked.post(path, {"to": to, "accept_loss": True})["owners"]
    if as_json:
        output.print_json(found)
    else:
        _print(found)


def with_figures(server: Server, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Complete a list of topics: the figures of a topic are known to its owner alone."""
    missing = {one["owner"] for one in found if one["owner"] is not None and one["bytes"] is None}
    if not missing:
        return found
    known: dict[str, dict[str, Any]] = {}
    try:
        brokers = [one for one in server.all("/v1/cluster/brokers") if one["broker_id"] in missing]
    except PermissionDenied:
        return found
    for one in brokers:
        address = http_address(one["addresses"])
        if address is None:
            continue
        try:
            theirs = server.broker(one["broker_id"], address).all("/v1/topics")
        except (ServerUnreachable, TryLater) as error:
            output.say(f"the figures of topics at {one['broker_id']} are left out: {error.message}")
            continue
        known |= {topic["topic"]: topic for topic in theirs if topic["owner"] == one["broker_id"]}
    return [known.get(one["topic"], one) for one in found]


def _print(found: list[dict[str, Any]]) -> None:
    rows = [
        (
            one["topic"],
            one["broker_id"],
            one["state"],
            flight_address(one["addresses"]),
            one["addresses"].get("danube"),
        )
        for one in found
    ]
    output.print_table(("topic", "broker", "state", "flight", "danube"), rows)
    for one in found:
        if one["problem"]:
            output.say(f"{one['topic']} is not served: {one['problem']}")
