"""What is made in a data folder is closed to other users of the host, whatever the umask and the folder's own mode."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import frazil
from frazil.core.disk.json_file import write_json
from frazil.core.settings import Settings
from frazil.meta.sqlite import SqliteStore
from parts.moving import HandMover


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def _is_open(path: Path) -> bool:
    return bool(stat.S_IMODE(path.stat().st_mode) & (stat.S_IXOTH if path.is_dir() else stat.S_IRWXO))


@pytest.mark.usefixtures("open_umask")
def test_nothing_in_a_data_folder_can_be_reached_by_others(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    settings = Settings(data=data)
    with frazil.open(settings) as storage:
        topic = storage.topic("/shop/orders")
        topic.publish("for few eyes")
        HandMover(settings).move(topic)
    store = SqliteStore(data / "~meta.db")
    store.put_if("/a", b"x", 0)
    write_json(data / "~pipeline.json", {"pid": 1})
    files = [path for path in data.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {"~meta.db", "~meta.db-wal", "~meta.db-shm", "~pipeline.json"} <= names
    assert any(path.suffix == ".parquet" for path in files)
    leading = {path: [path, *(each for each in path.parents if data in each.parents)] for path in files}
    assert [path for path, chain in leading.items() if all(map(_is_open, chain))] == []
    store.close()
