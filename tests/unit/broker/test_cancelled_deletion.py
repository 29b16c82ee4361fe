"""A caller that is cancelled while its topic is deleted: the topic is gone with all that is stored of it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from frazil.core.names import TopicName
from frazil.core.principal import LOCAL
from frazil.core.settings import make_settings
from frazil.node.node import open_node

NAME = TopicName.parse("/default/orders")
PARTITIONS = 3


def test_a_cancelled_deletion_leaves_nothing_behind_and_then_frees_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = open_node(make_settings({"data": str(tmp_path / "data")}), serves=True)
    begun, may_go_on = threading.Event(), threading.Event()
    delete = node.storage.delete_topic

    def slow(*given: Any) -> None:
        begun.set()
        assert may_go_on.wait(30)
        delete(*given)

    async def work() -> None:
        await node.start()
        try:
            broker = node.broker(LOCAL)
            await broker.create_topics(NAME, PARTITIONS, reliable=True, retention=None)
            monkeypatch.setattr(node.storage, "delete_topic", slow)
            deleting = asyncio.create_task(broker.delete_topic(NAME, force=True))
            await asyncio.to_thread(begun.wait, 30)
            for _ in range(2):
                deleting.cancel()
                await asyncio.sleep(0.05)
            assert not deleting.done(), "it holds the name until all logs are deleted"
            may_go_on.set()
            await asyncio.wait([deleting])
            assert deleting.cancelled()
            assert node.storage.topics() == []
            assert broker.identities._meta.list("/topics/") == []
            assert broker.identities._meta.list("/broker/topics/") == []
            await broker.create_topics(NAME, PARTITIONS, reliable=True, retention=None)
        finally:
            may_go_on.set()
            await node.stop()

    try:
        asyncio.run(asyncio.wait_for(work(), 60))
    finally:
        node.close()
