"""A caller that is cancelled while its topic is created: the topic and its record are both there, or neither."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from frazil.core.names import TopicName
from frazil.core.principal import LOCAL
from frazil.core.settings import make_settings
from frazil.meta.topic_records import topic_record_key
from frazil.node.node import open_node

NAME = "/default/orders"


def test_a_cancelled_creation_leaves_no_log_without_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = open_node(make_settings({"data": str(tmp_path / "data")}), serves=True)
    begun, may_go_on = threading.Event(), threading.Event()
    create = node.storage.create_topic

    def slow(*given: Any, **named: Any) -> Any:
        begun.set()
        assert may_go_on.wait(30)
        return create(*given, **named)

    async def work() -> None:
        await node.start()
        try:
            broker = node.broker(LOCAL)
            monkeypatch.setattr(node.storage, "create_topic", slow)
            creating = asyncio.ensure_future(broker.create_producer(NAME, "p", reliable=True))
            await asyncio.to_thread(begun.wait, 30)
            for _ in range(2):
                creating.cancel()
                await asyncio.sleep(0.05)
            assert not creating.done(), "it holds the name until the log is there"
            may_go_on.set()
            await asyncio.wait([creating])
            assert creating.cancelled()
            assert node.storage.topics() == [NAME]
            assert broker.identities._meta.get(topic_record_key(TopicName.parse(NAME))) is not None
            await broker.create_producer(NAME, "p", reliable=True)
        finally:
            may_go_on.set()
            await node.stop()

    try:
        asyncio.run(asyncio.wait_for(work(), 60))
    finally:
        node.close()
