"""Quotas of callers of the admin door that reads and publishes rows: dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from frazil.core.access import Action, Right, topic
from frazil.core.names import TopicName
from frazil.core.principal import LOCAL
from parts.secured_door import LETTERS, ORDERS, Door, opened

READING = Right(Action.DESCRIBE, topic(ORDERS)), Right(Action.READ, topic(LETTERS))
REPLAYING = *READING, Right(Action.PRODUCE, topic(ORDERS))
URL = f"/v1/topics{ORDERS}/dead-letters"
ALL: dict[str, Any] = {"which": "all"}


def run(folder: Path, work: Callable[[Door], Awaitable[None]], bytes_per_second: int, payloads: list[bytes]) -> None:
    async def inside() -> None:
        async with opened(folder, quota={"bytes_per_second": bytes_per_second}) as door:
            await door.node.create_topic(LOCAL, TopicName.parse(LETTERS))
            letters = door.node.topic(LOCAL, LETTERS)
            for payload in payloads:
                letters.publish(payload, attributes={"x-original-topic": ORDERS})
            door.add("reader", *READING)
            door.add("replayer", *REPLAYING)
            await asyncio.wait_for(work(door), 60)

    asyncio.run(inside())


def refused(answer: Any) -> None:
    assert (answer.status_code, answer.json()["error"]) == (429, "quota_exceeded"), answer.text
    assert answer.json()["quota"] == "bytes_per_second"
    assert int(answer.headers["retry-after"]) >= 1


def test_dead_letters_that_are_read_count_as_bytes(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        assert len((await door.call("GET", URL, "reader")).json()["items"]) == 1
        refused(await door.call("GET", URL, "reader"))
        assert (await door.call("GET", URL, "replayer")).status_code == 200, "another caller has its own"

    run(tmp_path, work, 1_000, [b"x" * 100_000])


@pytest.mark.parametrize("wanted", [ALL, {"which": "one", "offset": 0}])
def test_dead_letters_that_are_published_again_count_as_bytes(tmp_path: Path, wanted: dict[str, Any]) -> None:
    async def work(door: Door) -> None:
        answer = await door.call("POST", f"{URL}/replay", "replayer", wanted)
        assert answer.json()["replayed"] == 1, answer.text
        refused(await door.call("POST", f"{URL}/replay", "replayer", wanted))
        assert door.node.topic(LOCAL, ORDERS).stats().end == 1

    run(tmp_path, work, 1_000, [b"x" * 100_000])


def test_a_replay_stops_at_the_quota_and_says_where(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        done = (await door.call("POST", f"{URL}/replay", "replayer", ALL)).json()
        assert (done["replayed"], done["next"]) == (1, 0)
        assert done["error"]["quota"] == "bytes_per_second"
        assert door.node.topic(LOCAL, ORDERS).stats().end == 1

    run(tmp_path, work, 1_000, [b"x" * 100_000] * 3)
