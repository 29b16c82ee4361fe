"""A folder opened as a library does: readers find the tables, and retention respects them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiers import publish

import frazil
from frazil.core.json_file import write_json
from frazil.core.settings import RetentionSettings, make_settings
from frazil.topics.floor import status_path


@pytest.mark.parametrize("told", [None, 0, 1_500])
def test_retention_waits_for_tables_where_a_mover_has_told_of_them(tmp_path: Path, told: int | None) -> None:
    settings = make_settings({"data": tmp_path, "wal": {"max_file_size": 64 * 1024}})
    with frazil.open(settings) as storage:
        topic = storage.topic("/shop/orders")
        publish(topic, 3_000)
        if told is not None:
            table = {"log_id": topic.log.log_id, "table_end": told}
            write_json(status_path(settings), {"topics": {topic.name: table}})
        storage.set_retention(topic.name, RetentionSettings(bytes=1))
        storage.maintain()
        first = topic.stats().first_offset
    if told is None:
        assert first > 2_000
    else:
        assert max(0, told - 1_000) <= first <= told


def test_reading_makes_no_catalog(tmp_path: Path) -> None:
    with frazil.open(make_settings({"data": tmp_path, "wal": {"max_file_size": 64 * 1024}})) as storage:
        topic = storage.topic("/shop/orders")
        publish(topic, 3_000)
        storage.set_retention(topic.name, RetentionSettings(bytes=1))
        storage.maintain()
        first = topic.stats().first_offset
        assert [message.offset for message in topic.read()] == list(range(first, 3_000))
        with pytest.raises(frazil.OffsetOutOfRange):
            topic.read(0)
    assert not (tmp_path / "catalog.db").exists()
