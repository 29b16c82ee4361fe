"""`frazil verify`: prove that every acknowledged message is in exactly one place, or report where it is not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.target.jobs import run_job
from frazil.cli.target.server import Server, find_server
from frazil.cli.target.with_parent import end_with_stdin
from frazil.cli.terminal import options, output
from frazil.cli.terminal.progress import JsonProgress, counter
from frazil.core.cluster import BrokerState, http_address
from frazil.core.errors import FrazilError, TopicUnavailable
from frazil.core.extras import needs
from frazil.core.names import TopicName

if TYPE_CHECKING:
    from frazil.core.settings import Settings


def verify(
    topic: options.TopicOrAll = None,
    progress_json: Annotated[
        bool, typer.Option("--progress-json", help="With --json: before the answer, how far it is, twice a second.")
    ] = False,
    while_stdin: options.WhileStdin = False,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Read log and table completely, and prove that each acknowledged offset is in one of them, once and unchanged.

    Each offset from 0 must be in the log or in the table, or have been removed by a recorded retention. A running
    server starts it as a job; Ctrl-C cancels the job, too.
    """
    asked = None if while_stdin else find_server(server, data, config)  # a server's own process must not ask it again
    if asked is not None:
        found = _by_server(asked, topic, progress_json)
    else:
        found = _here(options.settings_on_disk(data, config), topic, progress_json, while_stdin)
    if as_json:
        output.print_json(found)
    else:
        _print(found["topics"])
    if not found["proven"]:
        raise typer.Exit(1)


def _here(settings: Settings, topic: str | None, progress_json: bool, while_stdin: bool) -> dict[str, Any]:
    if while_stdin:
        end_with_stdin()
    with needs():
        from frazil.node.verify.proofs import prove
    with contextlib.ExitStack() as stack:
        proofs = prove(settings, topic, lambda total: _begin(stack, total, progress_json))
    return {"proven": all(proof.proven for proof in proofs), "topics": [proof.as_dict() for proof in proofs]}


def _by_server(server: Server, topic: str | None, progress_json: bool) -> dict[str, Any]:
    """The owner of a topic proves it; all topics are proved by all brokers, one after another."""
    if topic is not None:
        return _job(server, {"topic": str(TopicName.parse(topic))}, progress_json)
    brokers = [one for one in server.all("/v1/cluster/brokers") if one["topics"] or one["is_asked"]]
    if all(one["is_asked"] for one in brokers):
        return _job(server, {}, progress_json)
    asked = [server if one["is_asked"] else _broker(server, one) for one in brokers]
    wanted = {one["topic"] for one in server.all("/v1/topics")}
    found = {proof["topic"]: proof for one in asked for proof in _job(one, {}, progress_json)["topics"]}
    left_out = sorted(wanted - found.keys())
    if left_out:
        raise TopicUnavailable(left_out[0], "it was moved or deleted while others were verified; verify it by its name")
    return {"proven": all(proof["proven"] for proof in found.values()), "topics": [found[one] for one in sorted(found)]}


def _broker(server: Server, one: dict[str, Any]) -> Server:
    address = http_address(one["addresses"])
    if one["state"] == BrokerState.GONE or address is None:
        topics = output.plural(one["topics"], "topic")
        raise FrazilError(
            f"the broker {one['broker_id']} is gone, and has {topics}, which nobody can verify: start it again, "
            "or verify topics by their names"
        )
    return server.broker(one["broker_id"], address)


def _job(server: Server, asked: dict[str, str], progress_json: bool) -> dict[str, Any]:
    return run_job(server, "/v1/verify", asked, "rows", lambda stack, total: _begin(stack, total, progress_json))


def _begin(stack: contextlib.ExitStack, total: int, progress_json: bool) -> Callable[[int], None]:
    return (
        JsonProgress("rows", total).advance
        if progress_json
        else stack.enter_context(counter("verifying", total)).advance
    )


def _print(proofs: list[dict[str, Any]]) -> None:
    rows = [
        (
            proof["topic"],
            proof["end"],
            proof["in_table"],
            proof["in_log"],
            proof["checked"],
            proof["removed_by_retention"],
            "proven" if proof["proven"] else output.plural(len(proof["problems"]), "problem"),
        )
        for proof in proofs
    ]
    headings = ("topic", "end", "in table", "only in log", "checked", "dropped", "result")
    output.print_table(headings, rows, right=headings[1:6])
    for proof in proofs:
        topic = proof["topic"]
        for start, end in proof["dropped"]:
            output.say(
                f"{topic}: offsets {start} up to {end} were removed by retention, which recorded it; in no table"
            )
        if proof["transformed"]:
            left = output.plural(proof["transformed"], "row")
            output.say(f"{topic}: of {left} only the result of a statement is left, which can't be proven")
        for start, end in proof["accepted_gaps"]:
            output.say(f"{topic}: offsets {start} up to {end} are missing, and were accepted as such")
        for one in proof["renumbered"]:
            became = f"offsets {one['cut']} up to {one['cut'] + one['rows']} of log {one['log_id']}"
            if one["rows"]:
                output.say(f"{topic}: {became} were renumbered, and begin at {one['table_end']} since")
        for problem in proof["problems"]:
            where = f"offsets {problem['start']} up to {problem['end']}"
            output.say(f"{topic}: {problem['kind']}: {where}: {problem['detail']}")
