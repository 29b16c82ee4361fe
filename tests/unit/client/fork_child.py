"""A program that forks while it uses a client, or a folder of its own. It says what its child meets with each call."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import frazil
import frazil.aio
from frazil.core.credentials import NO_CREDENTIALS
from frazil.log.folder.ownership import owner_of
from frazil.node.movers.log_source import RemoteOwner
from frazil.node.tiers.logs import OwnerView

TOPIC = "/default/orders"


def say(*words: object) -> None:
    print(*words, flush=True)


def tried(name: str, call: Callable[[], Any]) -> None:
    try:
        say(name, "went well:", call())
    except Exception as error:  # noqa: BLE001 - any is told
        say(name, type(error).__name__)


def in_child(work: Callable[[], None]) -> None:
    """As a program would that ends by itself: what it has of the parent's goes with its interpreter."""
    child = os.fork()
    if child == 0:
        work()
        sys.exit(0)
    say("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def client(address: str) -> None:
    with frazil.connect(address, give_up_ms=60_000) as storage:
        orders = storage.topic(TOPIC)
        say(orders.publish("of the parent"))
        follower = orders.read(follow=True)
        say(next(follower).payload)
        reader = orders.read_batches()

        def work() -> None:
            with contextlib.suppress(frazil.UsedAfterFork), storage:
                orders.publish("of the child")
            tried("publish", lambda: orders.publish("of the child"))
            tried("publish_many", lambda: orders.publish_many(["of", "the child"]))
            tried("open_producer", orders.open_producer)
            tried("topic", lambda: storage.topic(TOPIC))
            tried("read", orders.read)
            tried("next", lambda: next(reader))
            tried("follow", lambda: next(follower))
            tried("subscribe", lambda: orders.subscribe("cooks"))
            tried("connect", lambda: frazil.connect(address))
            tried("mover", lambda: RemoteOwner(address))
            tried("owner's logs", lambda: OwnerView(address, NO_CREDENTIALS, frazil.Settings()))
            tried("aio", lambda: asyncio.run(frazil.aio.connect(address)))
            tried("close", storage.close)

        in_child(work)
        say(orders.publish("of the parent again"))
        say(next(follower).payload)
        follower.close()


async def _of_asyncio(address: str) -> None:
    async with await frazil.aio.connect(address) as storage:
        orders = await storage.topic(TOPIC)
        say(await orders.publish("of the parent"))
        reader = orders.read(follow=True)
        say((await anext(reader)).payload)

        def work() -> None:
            asyncio.events._set_running_loop(None)  # the parent's
            tried("publish", lambda: asyncio.run(_awaited(orders.publish("of the child"))))
            tried("stats", lambda: asyncio.run(_awaited(orders.stats())))
            sys.stdout.flush()
            os._exit(0)  # out of the midst of the parent's loop

        in_child(work)
        say(await orders.publish("of the parent again"))


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


def embedded(folder: str) -> None:
    settings = frazil.Settings.of_folder(Path(folder))
    with frazil.open(settings) as storage:
        orders = storage.topic(TOPIC)
        say(orders.publish("of the parent"))
        follower = orders.read(follow=True)
        say(next(follower).payload)

        def work() -> None:
            with contextlib.suppress(frazil.UsedAfterFork), storage:
                orders.publish("of the child")
            tried("publish", lambda: orders.publish("of the child"))
            tried("publish_many", lambda: orders.publish_many(["of", "the child"], sent=frazil.Sent("p", 0, 0)))
            tried("open_producer", lambda: orders.open_producer("p"))
            tried("sync", orders.sync)
            tried("read", orders.read)
            tried("follow", lambda: next(follower))
            tried("topic", lambda: storage.topic("/default/other"))
            tried("delete", lambda: storage.delete_topic(TOPIC))
            tried("maintain", storage.maintain)
            tried("close", storage.close)
            tried("open", lambda: frazil.open(settings))

        in_child(work)
        say(owner_of(settings) == os.getpid())
        say(orders.publish("of the parent again"))
        say(next(follower).payload)


def read_only(folder: str) -> None:
    with frazil.open_read_only(folder) as storage:
        orders = storage.topic(TOPIC)
        reader, follower = orders.read_batches(), orders.read_batches(follow=True)
        say(next(follower).num_rows)

        def work() -> None:
            tried("topics", storage.topics)
            tried("topic", lambda: storage.topic(TOPIC))
            tried("read", orders.read)
            tried("stats", orders.stats)
            tried("next", lambda: next(reader))
            tried("follow", lambda: next(follower))
            tried("wait", follower.wait)
            tried("close", storage.close)

        in_child(work)
        say(next(reader).num_rows, orders.stats().messages)


def orphan(folder: str) -> None:
    """The owner is killed, and its child lives on."""
    storage = frazil.open(folder)
    storage.topic(TOPIC).publish("of the parent")
    if os.fork():
        os._exit(9)
    say("forked")
    sys.stdin.read()


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # Python warns of a fork where there are threads: that is the case in question
    what, where = sys.argv[1:]
    {
        "client": client,
        "asyncio": lambda at: asyncio.run(_of_asyncio(at)),
        "embedded": embedded,
        "read-only": read_only,
        "orphan": orphan,
    }[what](where)
