"""A subscription or a topic that an administrator deletes under live consumers: their clients end, and nothing comes
back by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from typing import Any

import httpx
import pytest

import frazil
from parts.danube import Server, Subscriber, connect, producer, serving, subscriber

ENDS_SECONDS = 40
"""A stock client asks every 5 s whether its consumer is there, and a stream is held for 6."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("deleted")) as found:
        yield found
        assert "Traceback" not in found.log()
        assert found.stop() == 0


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 100))


async def delete(server: Server, path: str) -> None:
    done = await asyncio.to_thread(httpx.delete, f"{server.http}/v1/topics{path}", timeout=30)
    assert done.status_code == 200, done.text


def subscriptions(server: Server, topic: str) -> list[str]:
    found = httpx.get(f"{server.http}/v1/topics{topic}/subscriptions", timeout=30).json()
    return [one["subscription"] for one in found["items"]]


async def ended(receiver: Subscriber) -> None:
    (task,) = receiver.consumer._tasks
    await asyncio.wait_for(asyncio.shield(task), ENDS_SECONDS)


def said(caplog: pytest.LogCaptureFixture) -> tuple[list[str], list[str]]:
    """The client's warnings of a failed stream, and its last word."""
    mine = [one for one in caplog.records if one.name == "danube.consumer"]
    streams = [one.getMessage() for one in mine if "error receiving message" in one.getMessage()]
    return streams, [one.getMessage() for one in mine if one.levelno == logging.ERROR]


def test_a_stock_consumer_ends_with_its_subscription_and_does_not_bring_it_back(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    topic = "/default/goes"

    async def work() -> None:
        client = await connect(server)
        sender = await producer(client, topic)
        async with subscriber(client, topic=topic, subscription="goes") as goes:
            await sender.send(b"a")
            assert await goes.texts(1) == ["a"]
            await delete(server, f"{topic}/subscriptions/goes")
            await ended(goes)
            assert subscriptions(server, topic) == []
            await sender.send(b"while nobody is subscribed")
        async with subscriber(client, topic=topic, subscription="goes") as again:  # by a wish of its own
            assert subscriptions(server, topic) == ["goes"]
            await sender.send(b"b")
            assert await again.texts(1) == ["b"]

    run(work())
    streams, last = said(caplog)
    assert 1 <= len(streams) <= 4, "it asks now and then, and not all the time"
    assert "NOT_FOUND" in streams[0]
    assert "has no subscription 'goes'; it was deleted while it had a consumer" in streams[0]
    (word,) = last
    assert "resubscription failed" in word
    assert "NOT_FOUND" in word


def test_a_stock_consumer_ends_with_its_topic_also_if_a_producer_makes_it_again(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    topic = "/default/made-again"

    async def work() -> None:
        client = await connect(server)
        await producer(client, topic)
        async with subscriber(client, topic=topic) as receiver:
            await delete(server, f"{topic}?force=true")
            sender = await producer(client, topic, "another")
            await sender.send(b"new")
            await ended(receiver)
            assert subscriptions(server, topic) == []
            assert receiver.waiting() == 0

    run(work())
    streams, last = said(caplog)
    assert 1 <= len(streams) <= 4
    assert len(last) == 1


def test_who_subscribes_again_at_once_is_taken_at_his_word(server: Server) -> None:
    topic = "/default/at-once"

    async def work() -> None:
        client = await connect(server)
        sender = await producer(client, topic)
        async with subscriber(client, topic=topic):
            await delete(server, f"{topic}/subscriptions/s")
        async with subscriber(client, topic=topic) as again:
            await sender.send(b"a")
            assert await again.texts(1) == ["a"]

    run(work())


def test_a_client_of_frazils_own_is_told_that_its_subscription_was_deleted(server: Server) -> None:
    topic = "/default/flight"
    with frazil.connect(server.flight) as storage:
        remote = storage.topic(topic)
        with remote.subscribe("s") as subscription:
            remote.publish("a")
            assert next(subscription).payload == b"a"
            asyncio.run(delete(server, f"{topic}/subscriptions/s"))
            with pytest.raises(frazil.SubscriptionNotFound, match="it was deleted while it had a consumer"):
                next(subscription)
        assert subscriptions(server, topic) == []
