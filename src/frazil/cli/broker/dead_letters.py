"""`frazil dead-letters`: messages that subscriptions gave up on, and their replay. Asks the server."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from frazil.cli.target.server import Server, need_server, topic_path
from frazil.cli.terminal import options, output
from frazil.cli.terminal.progress import counter
from frazil.core.errors import InvalidInput
from frazil.core.errors.codec import from_dict

app = typer.Typer(no_args_is_help=True, help="Show messages that subscriptions gave up on, and publish them again.")

From = Annotated[
    str | None, typer.Option("--from", metavar="TOPIC", help="The dead-letter topic of a policy, if it has its own.")
]
TEXT_MAX = 60
REPLAY_ROWS = 1_000


@app.command("list")
def list_(
    topic: options.TopicArgument,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=1_000, help="Maximum number.")] = 20,
    after: Annotated[int | None, typer.Option("--after", min=0, help="Only those after this offset.")] = None,
    source: From = None,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """List messages that subscriptions of a topic gave up on, oldest first, with the reason."""
    query = {"limit": count, "after": after, "from": source}
    found = need_server(server, data, config).get(topic_path(topic, "dead-letters"), **query)
    if as_json:
        output.print_json(found["items"])
        return
    if not found["items"]:
        output.say(f"there are no dead letters of {topic}")
        return
    names = ("offset", "original_offset", "original_subscription", "redeliveries", "reason", "payload")
    shown = [{**one, "payload": _payload(one)} for one in found["items"]]
    output.print_dicts(names, shown, right=("offset", "original_offset", "redeliveries"))
    if found["next"] is not None:
        output.say(f"there are more: --after {found['next']}")


@app.command()
def replay(
    topic: options.TopicArgument,
    offset: Annotated[int | None, typer.Option("--offset", min=0, help="This one, by its `offset`.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    after: Annotated[int | None, typer.Option("--after", min=0, help="With --all: those after this offset.")] = None,
    source: From = None,
    yes: options.Yes = False,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Publish dead letters again to their topic. They are not removed: replaying twice publishes twice."""
    if all_ == (offset is not None) or (after is not None and not all_):
        raise InvalidInput("give --offset N for one dead letter, or --all, with or without --after")
    asked = need_server(server, data, config)
    if not yes:
        which = f"dead letter {offset}" if offset is not None else "all dead letters"
        typer.confirm(f"Publish {which} of {topic} again?", abort=True, err=True)
    path = topic_path(topic, "dead-letters", "replay") + ("" if source is None else f"?{urlencode({'from': source})}")
    if offset is not None:
        done = asked.post(path, {"which": "one", "offset": offset})["replayed"]
    else:
        done = _replay_all(asked, path, after)
    if as_json:
        output.print_json({"topic": topic, "replayed": done})
    else:
        print(f"published {output.plural(done, 'dead letter')} of {topic} again")


def _replay_all(server: Server, path: str, after: int | None) -> int:
    """Replay in portions, each of which reports its progress: an error includes what was published before it."""
    done = 0
    with counter("replaying", None) as bar:
        while True:
            answer = server.post(path, {"which": "all", "after": after, "limit": REPLAY_ROWS})
            done += int(answer["replayed"])
            bar.advance(answer["replayed"])
            if answer["error"] is not None:
                error = from_dict(answer["error"])
                error.fields |= {"replayed": done, "next": answer["next"]}
                go_on = "" if answer["next"] is None else f"; continue with --after {answer['next']}"
                error.message += f"; {output.plural(done, 'dead letter')} before it were published again{go_on}"
                raise error
            after = answer["next"]
            if after is None:
                return done


def _payload(letter: dict[str, Any]) -> str:
    text = letter["text"]
    if text is None:
        return f"{len(letter['payload']) * 3 // 4} bytes"
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…"
