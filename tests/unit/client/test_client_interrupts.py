"""An interrupt (Ctrl-C) of a caller is that caller's alone: others are answered, and every answer is true."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter

import pytest

import frazil
import frazil.aio
from frazil.client.connection import act_on
from frazil.client.opening import open_client
from frazil.core.credentials import ClientCredentials, TokenReader
from parts.interrupts import Interrupts, Others

TOPIC = "/default/orders"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one that was raised in a callback
@pytest.mark.parametrize("seed", range(2))
def test_interrupts_at_random_moments_keep_no_other_caller_waiting_and_store_nothing_twice(
    owner: frazil.Storage, remote: frazil.RemoteStorage, seed: int
) -> None:
    topic = remote.topic(TOPIC)
    interrupts, attempts = Interrupts(seed), 0
    answered: dict[int, bytes] = {}

    def publish(payload: bytes) -> None:
        answered[topic.publish(payload)] = payload

    def publish_many(payload: bytes) -> None:
        answered[topic.publish_many([payload]).start] = payload

    end = time.monotonic() + 2.0
    with Others(topic) as others, interrupts.coming():
        while time.monotonic() < end and not others.errors:
            attempts += 1
            interrupts.call(lambda payload=b"main %d" % attempts: publish(payload))  # type: ignore[misc]
            interrupts.call(lambda payload=b"many %d" % attempts: publish_many(payload))  # type: ignore[misc]
    assert not others.errors
    assert interrupts.count > 3
    assert topic.publish(b"after") >= 0
    rows = {message.offset: message.payload for message in owner.topic(TOPIC).read()}
    for offset, payload in {**answered, **others.answered}.items():
        assert rows[offset] == payload
    assert [payload for payload, count in Counter(rows.values()).items() if count > 1] == []


@pytest.mark.timeout(60)
def test_a_loop_that_ends_with_a_publish_on_its_way_keeps_nobody_else_waiting(
    owner: frazil.Storage, remote: frazil.RemoteStorage
) -> None:
    topic = remote.topic(TOPIC)
    topic.publish(b"first")
    answered: list[int] = []
    others = threading.Thread(target=lambda: answered.append(topic.publish(b"of a thread")), daemon=True)

    async def give_up() -> None:
        left = asyncio.create_task(frazil.aio.RemoteTopic(topic).publish(b"of the loop"))
        await asyncio.sleep(0)
        left.cancel()

    with owner.topic(TOPIC).log._io:  # as a disk that takes its time
        asyncio.run(give_up())
        others.start()
    others.join(30)
    assert answered == [2]
    assert topic.publish(b"later") == 3


def test_a_ctrl_c_while_a_call_is_given_its_token_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow would swallow it in a middleware, and whoever follows a topic would follow it for ever."""
    client = open_client("grpc://127.0.0.1:9", ClientCredentials(token="frz_of_a_test"))

    def interrupt(_: TokenReader) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(TokenReader, "read", interrupt)
    with pytest.raises(KeyboardInterrupt):
        act_on(client, "grpc://127.0.0.1:9", "topics", b"", 5.0)
    client.close()
