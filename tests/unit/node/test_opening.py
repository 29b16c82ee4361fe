"""A folder opened as a library does: readers find the tables, and retention respects them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tiers import publish

import frazil
import frazil.aio
from frazil.core.disk.json_file import write_json
from frazil.core.settings import RetentionSettings, make_settings
from frazil.node.movers.table_progress import status_path


@pytest.mark.parametrize("told", [None, 0, 1_500])
def test_what_a_mover_told_keeps_rows_and_lets_none_go(tmp_path: Path, told: int | None) -> None:
    settings = make_settings({"data": tmp_path, "wal": {"max_file_size": 64 * 1024}})
    with frazil.open(settings) as storage:
        topic = storage.topic("/shop/orders")
        publish(topic, 3_000)
        if told is not None:
            table = {"log_id": topic.log.log_id, "table_end": told}
            write_json(status_path(settings), {"topics": {topic.name: table}})
        storage.set_retention(topic.name, RetentionSettings(bytes=1))
        storage.maintain()
        assert (topic.log.first_offset > 2_000) is (told is None)


def test_reading_makes_no_catalog(tmp_path: Path) -> None:
    with frazil.open(make_settings({"data": tmp_path, "wal": {"max_file_size": 64 * 1024}})) as storage:
        topic = storage.topic("/shop/orders")
        publish(topic, 3_000)
        storage.set_retention(topic.name, RetentionSettings(bytes=1))
        storage.maintain()
        first = topic.log.first_offset
        assert [message.offset for message in topic.read()] == list(range(first, 3_000))
        with pytest.raises(frazil.OffsetOutOfRange):
            topic.read(0)
    assert not (tmp_path / "catalog.db").exists()


def _file_of(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["frazil.yaml", "frazil.yml"])
def test_a_settings_file_is_opened_by_every_face(tmp_path: Path, name: str) -> None:
    data = tmp_path / "data"
    path = _file_of(tmp_path, name, f"data: {data}\nwal: {{message_bytes_max: 100}}\n")
    with frazil.open(str(path)) as storage:
        storage.topic("/shop/orders").publish("tea")
        with pytest.raises(frazil.MessageTooLarge):
            storage.topic("/shop/orders").publish("x" * 101)

    async def topics() -> list[str]:
        async with await frazil.aio.open(path) as storage:
            return await storage.topics()

    assert asyncio.run(topics()) == ["/shop/orders"]
    with frazil.open({"data": str(data)}) as storage:
        assert storage.topics() == ["/shop/orders"]
    with frazil.open_read_only(path) as tables:
        assert tables.topics() == []


def test_a_file_that_is_no_settings_file_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    missing, other = tmp_path / "missing.yaml", _file_of(tmp_path, "notes.txt", "tea")
    wrong = _file_of(tmp_path, "wrong.yaml", "- tea\n")
    for path, said in ((missing, "cannot read"), (other, "is a file"), (wrong, "must hold a mapping")):
        for opened in (frazil.open, frazil.open_read_only):
            with pytest.raises(frazil.InvalidSettings, match=said):
                opened(str(path))
        with pytest.raises(frazil.InvalidSettings, match=said):
            asyncio.run(frazil.aio.open(path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "wrong.yaml"]


def test_a_data_folder_may_end_in_yaml(tmp_path: Path) -> None:
    folder = tmp_path / "odd.yaml"
    folder.mkdir()
    with frazil.open(folder) as storage:
        storage.topic("/shop/orders").publish("tea")
    with frazil.open(folder) as storage:
        assert storage.topics() == ["/shop/orders"]
