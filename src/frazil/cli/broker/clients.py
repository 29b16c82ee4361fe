"""`frazil producers` and `frazil consumers`: known producers and consumers, and which are
connected. Asks the server.
"""

from __future__ import annotations

from typing import Annotated

import typer

from frazil.cli.broker.subscriptions import topics_with
from frazil.cli.target.server import need_server, topic_path
from frazil.cli.terminal import completion, options, output

producers_app = typer.Typer(no_args_is_help=True, help="List producers.")
consumers_app = typer.Typer(no_args_is_help=True, help="List consumers.")

SubscriptionOrAll = Annotated[
    str | None,
    typer.Argument(
        metavar="[SUBSCRIPTION]",
        help="One subscription; all of the topic if none.",
        autocompletion=completion.subscriptions,
    ),
]


@producers_app.callback()
@consumers_app.callback()
def _group() -> None:
    """Force a group even with one verb: Typer would leave its name out."""


@producers_app.command("list")
def list_producers(
    topic: options.TopicOrAll = None,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """List the known producers of one topic or of all."""
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
    """List consumers, connected or not, and their messages in flight."""
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
