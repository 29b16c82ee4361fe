"""One topic over its tiers, made without Spark: the oldest rows only in the table, the newest only in the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiers import FLOOR, NAME, publish, remove_what_the_table_has

import frazil
from frazil.core.settings import Settings, make_settings
from parts.moving import HandMover, open_guarded


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings({"data": tmp_path / "data", "wal": {"max_file_size": 64 * 1024, "cache_bytes": 256 * 1024}})


@pytest.fixture
def storage(settings: Settings) -> Iterator[frazil.Storage]:
    with open_guarded(settings, FLOOR) as storage:
        yield storage


@pytest.fixture
def mover(settings: Settings) -> HandMover:
    return HandMover(settings)


@pytest.fixture
def topic(storage: frazil.Storage, mover: HandMover) -> frazil.Topic:
    """Five thousand messages: the oldest only in the table, some in both, the newest only in the log."""
    topic = storage.topic(NAME)
    publish(topic, 4_000)
    mover.move(topic, files=3)
    remove_what_the_table_has(storage, topic, 3_500)
    publish(topic, 1_000)
    assert 0 < topic.log.first_offset <= 3_500
    return topic
