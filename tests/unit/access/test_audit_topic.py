"""The audit topic: a copy of each record, best effort, that never holds up the file."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from frazil.core.errors import TopicNotFound, TryLater
from frazil.core.principal import LOCAL, Principal
from frazil.core.settings import Settings
from frazil.node.access.audit_log.topic import AuditTopic
from frazil.node.node import Node, open_node

ALICE = Principal("key:alice")


def test_records_are_in_the_topic_which_is_created(tmp_path: Path) -> None:
    security = {"enabled": True, "audit": {"topic": "/default/audit"}}
    settings = Settings.model_validate({"data": tmp_path, "security": security})

    async def record() -> None:
        with open_node(settings) as node:
            await node.start()
            audit = node.access_parts(LOCAL).audit
            for number in range(3):
                audit.record(ALICE, "create", f"topic /a/{number}", False)
            found: list[dict[str, Any]] = []
            while len(found) < 3:  # the timeout of the test ends it
                await asyncio.sleep(0.02)
                found = await asyncio.to_thread(_records, node)
            await node.stop()
        assert [one["resource"] for one in found] == ["topic /a/0", "topic /a/1", "topic /a/2"]
        lines = (tmp_path / "audit.log").read_text().splitlines()
        assert [json.loads(line) for line in lines] == found

    asyncio.run(record())


def _records(node: Node) -> list[dict[str, Any]]:
    try:
        batches = list(node.read(LOCAL, "/default/audit"))
    except TopicNotFound:
        return []
    return [json.loads(row) for batch in batches for row in batch.column("_payload").to_pylist()]


def test_a_full_queue_and_a_failed_publish_lose_records_and_count_them() -> None:
    async def lose() -> None:
        published: list[bytes] = []
        held = asyncio.Event()
        fails = False

        async def publish(lines: list[bytes]) -> None:
            await held.wait()
            if fails:
                raise TryLater("no disk")
            published.extend(lines)

        topic = AuditTopic(publish, asyncio.get_running_loop(), waiting_max=3)
        topic.offer([b"1"])
        await asyncio.sleep(0.01)  # it is being published
        topic.offer([b"2", b"3", b"4", b"5", b"6"])
        await asyncio.sleep(0.01)
        assert topic.lost == 2
        held.set()
        await asyncio.sleep(0.01)
        assert published == [b"1", b"2", b"3", b"4"]
        fails = True
        topic.offer([b"7"])
        await asyncio.sleep(0.01)
        assert topic.lost == 3
        fails = False
        topic.offer([b"8"])
        await asyncio.sleep(0)
        await topic.close()
        assert published[-1] == b"8"

    asyncio.run(lose())


def test_a_name_that_is_no_topic_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"topic"):
        Settings.model_validate({"data": tmp_path, "security": {"audit": {"topic": "no topic"}}})
