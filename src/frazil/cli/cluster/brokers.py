"""`frazil brokers`: list, drain and activate the brokers of a cluster, and spread their load. Asks any broker."""

from __future__ import annotations

import threading
from typing import Annotated, Any
from urllib.parse import quote

import typer

from frazil.cli.target.server import Server, need_server
from frazil.cli.terminal import options, output
from frazil.cli.terminal.progress import counter
from frazil.cli.terminal.quantities import parse_duration_ms
from frazil.core.cluster import flight_address, http_address

app = typer.Typer(no_args_is_help=True, help="List, drain and activate brokers, and spread their load.")

ROUND_MS = 2_000
"""A drain reports its progress this often."""
PAUSE_SECONDS = 0.5
PARALLEL_MAX = 64
REBALANCE_SECONDS_MAX = 600.0

BrokerArgument = Annotated[str, typer.Argument(metavar="BROKER", help="Its id, as `frazil brokers list` shows it.")]


@app.command("list")
def list_(
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """List the brokers, with their topics and their load, also those that are gone and still own topics."""
    found = need_server(server, data, config).all("/v1/cluster/brokers")
    if as_json:
        output.print_json(found)
        return
    rows = [
        (
            one["broker_id"] + (" (leader)" if one["is_leader"] else ""),
            one["state"],
            one["topics"],
            f"{one['load']:.2f}",
            http_address(one["addresses"]),
            flight_address(one["addresses"]),
            one["addresses"].get("danube"),
        )
        for one in found
    ]
    output.print_table(
        ("broker", "state", "topics", "load", "http", "flight", "danube"), rows, right=("topics", "load")
    )


@app.command()
def drain(
    broker: BrokerArgument,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="Stop after this time, as 10m; default: never.")
    ] = None,
    parallel: Annotated[
        int, typer.Option("--parallel", metavar="N", min=1, max=PARALLEL_MAX, help="Topics that move at once.")
    ] = 4,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Move all topics of a broker to others, and give it no new ones until `frazil brokers activate`.

    Ends with code 4 if topics are left, which are still served there.
    """
    limit_ms = None if timeout is None else parse_duration_ms(timeout, "--timeout")
    found = _drained(need_server(server, data, config), broker, limit_ms, parallel)
    if as_json:
        output.print_json(found)
    else:
        print(f"moved {output.plural(found['moved'], 'topic')} of {broker} to other brokers")
        if found["pending"]:
            output.say(f"{output.plural(found['pending'], 'topic')} are left: the time is over; drain it again")
        for topic, reason in found["failed"].items():
            output.say(f"{topic} stays: {reason}")
    if found["pending"] or found["failed"]:
        raise typer.Exit(4)


def _drained(server: Server, broker: str, limit_ms: int | None, parallel: int) -> dict[str, Any]:
    """Drain in rounds until nothing is left, the time is over, or the rest cannot be moved."""
    from frazil.core.clock import SystemClock

    clock, total, moved = SystemClock(), 0, 0
    since_us = clock.monotonic_us()
    with counter(f"draining {broker}", None) as shown:
        while True:
            left_ms = None if limit_ms is None else limit_ms - (clock.monotonic_us() - since_us) // 1_000
            round_ms = ROUND_MS if left_ms is None else max(1, min(ROUND_MS, left_ms))
            asked = {"timeout_ms": round_ms, "parallel_max": parallel}
            found = server.post(f"/v1/cluster/brokers/{quote(broker, safe='')}/drain", asked)
            moved += found["moved"]
            total = moved + found["pending"] + len(found["failed"])
            shown.advance(found["moved"])
            is_over = left_ms is not None and left_ms <= round_ms
            if not found["pending"] or is_over:
                return {**found, "total": total, "moved": moved}
            if not found["moved"]:
                threading.Event().wait(PAUSE_SECONDS)


@app.command()
def activate(
    broker: BrokerArgument,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Let a drained broker get topics again."""
    found = need_server(server, data, config).post(f"/v1/cluster/brokers/{quote(broker, safe='')}/activate", {})
    if as_json:
        output.print_json(found)
    else:
        print(f"{broker} is active")


@app.command()
def balance(
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Show how evenly the load is spread over the brokers."""
    found = need_server(server, data, config).get("/v1/cluster/balance")
    if as_json:
        output.print_json(found)
        return
    rows = [
        (
            one["broker_id"],
            one["state"],
            one["topics"],
            f"{one['load']:.2f}",
            "overloaded" if one["overloaded"] else "underloaded" if one["underloaded"] else "even",
        )
        for one in found["brokers"]
    ]
    output.print_table(("broker", "state", "topics", "load", "is"), rows, right=("topics", "load"))
    print(f"mean load {found['mean']:.2f}, from {found['min']:.2f} to {found['max']:.2f}; "
          f"variation {found['variation']:.0%}")  # fmt: skip


@app.command()
def rebalance(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the moves, and make none.")] = False,
    moves_max: Annotated[
        int | None, typer.Option("--moves-max", metavar="N", min=1, help="Make at most this many moves.")
    ] = None,
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Move topics from brokers with much load to those with little."""
    asked = need_server(server, data, config).quick(REBALANCE_SECONDS_MAX)
    found = asked.post("/v1/cluster/rebalance", {"dry_run": dry_run, "moves_max": moves_max})
    if as_json:
        output.print_json(found)
        return
    if not found["moves"]:
        print("the load is even: no topic is moved")
        return
    rows = [(one["topic"], one["from_broker"], one["to_broker"], f"{one['load']:.2f}", one["reason"])
            for one in found["moves"]]  # fmt: skip
    output.print_table(("topic", "from", "to", "load", "because"), rows, right=("load",))
    if dry_run:
        output.say("nothing was moved; run it again without --dry-run")
