"""`frazil producers` and `frazil consumers`: who is known, and who is there. Asks the server."""

from __future__ import annotations

from typing import Annotated

import typer

from frazil.cli import completing, options, output
from frazil.cli.server import need_server, topic_path
from frazil.cli.subscriptions import topics_with

producers_app = typer.Typer(no_args_is_help=True, help="Look at who publishes.")
consumers_app = typer.Typer(no_args_is_help=True, help="Look at who consumes.")

SubscriptionOrAll = Annotated[
    str | None,
    typer.Argument(
        metavar="[SUBSCRIPTION]",
        help="One subscription; all of the topic if none.",
        autocompletion=completing.subscriptions,
    ),
]


@producers_app.callback()
@consumers_app.callback()
def _group() -> None:
    """A group even of one verb: Typer would leave its name out."""


@producers_app.command("list")
def list_producers(
    topic: options.TopicOrAll = None,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """List who was ever made a producer, of one topic or of all."""
    asked = need_server(server, data, config)
    names = topics_with(asked, topic, "producers")
    found = [one for name in names for one in asked.all(topic_path(name, "producers"))]
    if as_json:
        output.print_json(found)
    elif not found:
        output.say("there are no producers")
    else:
        output.print_dicts(("topic", "producer", "id"), found)


@consumers_app.command("list")
def list_consumers(
    topic: options.TopicOrAll = None,
    subscription: SubscriptionOrAll = None,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """List consumers, connected or not, and what each has in hand."""
    asked = need_server(server, data, config)
    if topic is not None and subscription is not None:
        pairs = [(topic, subscription)]
    else:
        names = topics_with(asked, topic, "subscriptions")
        pairs = [(name, one["subscription"]) for name in names for one in asked.all(topic_path(name, "subscriptions"))]
    found = [one for name, each in pairs for one in asked.all(topic_path(name, "subscriptions", each, "consumers"))]
    if as_json:
        output.print_json(found)
    elif not found:
        output.say("there are no consumers")
    else:
        columns = ("topic", "subscription", "consumer", "connected", "in_flight", "key_filters")
        output.print_dicts(columns, found, right=("in_flight",))
