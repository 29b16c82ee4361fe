"""A data folder whose log is uploaded to a local store, as the tests of the object tier use it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import frazil
from frazil.core.settings import Settings, make_settings
from frazil.log.topic import Topic
from frazil.node.objects.parts import ObjectParts
from parts.processes import pause

TOPIC = "/shop/orders"
WAIT_SECONDS_MAX = 20.0


def until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_SECONDS_MAX
    while not reached():
        assert time.monotonic() < end, "it does not happen"
        pause(0.02)


def settings_of(tmp_path: Path, **objects: Any) -> Settings:
    store = {"type": "local", "path": str(tmp_path / "store")}
    return make_settings(
        {
            "data": str(tmp_path / "data"),
            "wal": {"max_file_size": 256 * 1024, "cache_bytes": 0, "retention": {"bytes": 300_000}},
            "pipeline": {"enabled": False},
            "objects": {"enabled": True, "store": store, **objects},
        }
    )


def parts_of(storage: frazil.Storage) -> ObjectParts:
    parts = storage.attachment
    assert isinstance(parts, ObjectParts)
    return parts


def filled(storage: frazil.Storage, count: int = 1_000) -> Topic:
    topic = storage.topic(TOPIC)
    for number in range(topic.log.durable_end, topic.log.durable_end + count):
        topic.publish_many([f"{number} ".encode() * 1_000])
    return topic


def numbers_in(topic: Topic) -> list[int]:
    return [
        int(payload.split()[0])
        for batch in topic.read_batches("earliest")
        for payload in batch.column("_payload").to_pylist()
    ]


def names_in(settings: Settings) -> list[str]:
    return sorted(str(one) for one in (settings.objects.store.path).rglob("*") if one.is_file())  # type: ignore[union-attr]


def aged(settings: Settings, **limits: int) -> Settings:
    return settings.model_copy(update={"objects": settings.objects.model_copy(update=limits)})
