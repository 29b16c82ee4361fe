"""A topic deleted on its folder, and the verb killed between any two of its steps."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from pathlib import Path

import frazil
from frazil.broker.broker import Broker
from frazil.broker.delivery.assignment import Kind
from frazil.broker.topics.deleting import delete_with_records
from frazil.core.clock import SystemClock
from frazil.core.settings import Settings
from frazil.core.settings.broker import BrokerSettings
from frazil.meta.opening import open_meta
from frazil.registry.registry import SchemaRegistry
from frazil.registry.topics import TopicSchemas

TOPIC = "/default/orders"
OTHER = "/default/others"


async def fill(settings: Settings) -> None:
    """Two topics with all that a broker and a registry store of them."""
    with frazil.open(settings) as storage, contextlib.closing(open_meta(settings)) as meta:
        broker = Broker(storage, meta, BrokerSettings(), SystemClock())
        await broker.start()
        registry = SchemaRegistry(meta, SystemClock())
        registry.register("tea", "string", b"string")
        for topic in (TOPIC, OTHER):
            await broker.create_producer(topic, "p", reliable=True)
            for name in ("s", "t"):
                await broker.subscribe(topic, name, Kind.SHARED, "c")
            TopicSchemas(meta, registry, SystemClock()).bind(topic, "tea")
            storage.topic(topic).publish("tea")
        await broker.close()


def stored(settings: Settings, *topics: str) -> list[str]:
    with contextlib.closing(open_meta(settings)) as meta:
        return [entry.key for entry in meta.list("/") if any(topic in entry.key for topic in topics)]


def test_whatever_is_killed_leaves_nothing_that_a_later_topic_would_inherit(tmp_path: Path) -> None:
    template = tmp_path / "template"
    asyncio.run(fill(Settings.of_folder(template)))
    of_other = stored(Settings.of_folder(template), OTHER)
    assert len(of_other) == len(stored(Settings.of_folder(template), TOPIC)) == 10
    child = [sys.executable, str(Path(__file__).parent / "delete_child.py"), template, tmp_path / "copies", TOPIC]
    done = subprocess.run(child, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    rounds = [line.split() for line in done.stdout.splitlines()]
    assert len(rounds) > 12
    assert [ended for _, ended in rounds] == ["False"] * (len(rounds) - 1) + ["True"]
    gone = 0
    for number, _ in rounds:
        settings = Settings.of_folder(tmp_path / "copies" / number)
        left = stored(settings, TOPIC)
        with frazil.open(settings) as storage:
            if TOPIC in storage.topics():
                delete_with_records(storage, TOPIC, force=True)
            else:
                assert left == []
                gone += 1
            assert stored(settings, TOPIC, OTHER) == of_other
            assert storage.topics() == [OTHER]
    assert 0 < gone < len(rounds)
