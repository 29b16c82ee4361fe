"""`frazil subscriptions`: progress, cursor resets and policies of subscriptions. Asks the server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

import typer

from frazil.cli.target.server import Server, need_server, topic_path
from frazil.cli.terminal import options, output
from frazil.cli.terminal.positions import parse_start
from frazil.cli.terminal.quantities import parse_bytes, parse_duration_ms
from frazil.core.errors import InvalidInput

app = typer.Typer(no_args_is_help=True, help="Show subscriptions, set their policies and cursors, delete them.")


def topics_with(server: Server, topic: str | None, what: str) -> Iterator[str]:
    """Return the named topic, or all topics that have any subscriptions, producers or consumers."""
    if topic is not None:
        yield topic
        return
    yield from (one["topic"] for one in server.all("/v1/topics") if one[what])


@app.command("list")
def list_(
    topic: options.TopicOrAll = None,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """List subscriptions: cursor, messages in flight, and consumers."""
    asked = need_server(server, data, config)
    found = [one for name in topics_with(asked, topic, "subscriptions") for one in _of(asked, name)]
    if as_json:
        output.print_json(found)
    elif not found:
        output.say("there are no subscriptions; a consumer creates one when it subscribes")
    else:
        names = ("topic", "subscription", "type", "cursor", "end", "lag", "in_flight", "resting", "connected")
        output.print_dicts(names, found, right=names[3:])
        for one in found:
            _say_blocked(one)


@app.command()
def describe(
    topic: options.TopicArgument,
    subscription: options.SubscriptionArgument,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Show one subscription."""
    found = need_server(server, data, config).get(topic_path(topic, "subscriptions", subscription))
    if as_json:
        output.print_json(found)
        return
    output.print_facts(found)
    _say_blocked(found)


@app.command()
def reset(
    topic: options.TopicArgument,
    subscription: options.SubscriptionArgument,
    to: Annotated[
        str, typer.Option("--to", metavar="start|end|N|@TIME", help="@TIME: ISO 8601 (UTC), or ms since 1970.")
    ],
    yes: options.Yes = False,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Move a subscription's cursor. Messages from there on are redelivered, earlier ones never."""
    start = parse_start(to, "--to")
    asked, path = need_server(server, data, config), topic_path(topic, "subscriptions", subscription)
    if not yes:
        before = asked.get(path)
        question = f"Set {subscription} of {topic}, which is at {before['cursor']} of {before['end']}, to {to}?"
        typer.confirm(question, abort=True, err=True)
    found = asked.post(f"{path}/reset", _wanted(start))
    if as_json:
        output.print_json(found)
    else:
        print(f"{subscription} of {topic} continues at offset {found['cursor']}")


@app.command()
def policy(
    topic: options.TopicArgument,
    subscription: options.SubscriptionArgument,
    max_unacked_messages: Annotated[
        int | None, typer.Option("--max-unacked-messages", metavar="N", help="Messages in flight at once.")
    ] = None,
    max_unacked_bytes: Annotated[
        str | None, typer.Option("--max-unacked-bytes", metavar="SIZE", help="Their bytes, as 64MiB.")
    ] = None,
    ack_timeout: Annotated[
        str | None, typer.Option("--ack-timeout", metavar="TIME", help="Redeliver after this time, as 30s.")
    ] = None,
    redeliveries_max: Annotated[
        int | None, typer.Option("--redeliveries-max", metavar="N", help="Redeliveries before --poison decides.")
    ] = None,
    redelivery_delay: Annotated[
        str | None, typer.Option("--redelivery-delay", metavar="TIME", help="Delay before the first redelivery.")
    ] = None,
    redelivery_delay_max: Annotated[
        str | None, typer.Option("--redelivery-delay-max", metavar="TIME", help="The longest delay.")
    ] = None,
    backoff: Annotated[str | None, typer.Option("--backoff", metavar="fixed|exponential")] = None,
    poison: Annotated[str | None, typer.Option("--poison", metavar="block|drop|dead_letter")] = None,
    dead_letter_topic: Annotated[
        str | None, typer.Option("--dead-letter-topic", metavar="TOPIC", help="Instead of TOPIC-dead-letter.")
    ] = None,
    default: Annotated[bool, typer.Option("--default", help="Restore the settings of the broker.")] = False,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Show how a subscription delivers; options set that part of its policy."""
    wanted: dict[str, Any] = {
        "max_unacked_messages": max_unacked_messages,
        "max_unacked_bytes": _bytes(max_unacked_bytes, "--max-unacked-bytes"),
        "ack_timeout_ms": _ms(ack_timeout, "--ack-timeout"),
        "redeliveries_max": redeliveries_max,
        "redelivery_delay_ms": _ms(redelivery_delay, "--redelivery-delay"),
        "redelivery_delay_ms_max": _ms(redelivery_delay_max, "--redelivery-delay-max"),
        "backoff": backoff,
        "poison": poison,
        "dead_letter_topic": dead_letter_topic,
    }
    given = {name: value for name, value in wanted.items() if value is not None}
    if default and given:
        raise InvalidInput("--default excludes the other options: give it alone", field="default")
    asked, path = need_server(server, data, config), topic_path(topic, "subscriptions", subscription, "policy")
    if default:
        found = asked.delete(path)
    else:
        found = asked.get(path)
        if given:
            found = asked.put(path, {**found["policy"], **given})
    if as_json:
        output.print_json(found)
        return
    effective, own = found["effective"], found["policy"]
    rows = [(name, value, "default" if own[name] is None else "its own") for name, value in effective.items()]
    output.print_table(("policy", "value", "from"), rows)


@app.command()
def delete(
    topic: options.TopicArgument,
    subscription: options.SubscriptionArgument,
    yes: options.Yes = False,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Delete a subscription and its cursor; the streams of its consumers end."""
    asked, path = need_server(server, data, config), topic_path(topic, "subscriptions", subscription)
    if not yes:
        lag = asked.get(path)["lag"]
        left = "an unknown number of messages" if lag is None else output.plural(lag, "message")
        typer.confirm(f"Delete {subscription} of {topic}, with {left} not acknowledged?", abort=True, err=True)
    found = asked.delete(path)
    if as_json:
        output.print_json(found)
    else:
        print(f"deleted subscription {subscription} of {topic}")


def _bytes(text: str | None, option: str) -> int | None:
    return None if text is None else parse_bytes(text, option)


def _ms(text: str | None, option: str) -> int | None:
    return None if text is None else parse_duration_ms(text, option)


def _of(server: Server, topic: str) -> list[dict[str, Any]]:
    return server.all(topic_path(topic, "subscriptions"))


def _wanted(start: str | int | datetime) -> dict[str, Any]:
    if isinstance(start, datetime):
        return {"to": "time", "time": start.isoformat()}
    return {"to": "offset", "offset": start} if isinstance(start, int) else {"to": start}


def _say_blocked(one: dict[str, Any]) -> None:
    if one["blocked_by"] is not None:
        where = f"{one['subscription']} of {one['topic']}"
        output.say(f"{where} waits for offset {one['blocked_by']}, which nothing may overtake; acknowledge or reset it")
