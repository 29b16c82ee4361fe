"""Topics of ack level `object` in a data folder: made by its settings, read across tiers, uploaded by nobody else."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.core.errors import InvalidInput
from frazil.core.settings import AckLevel, make_settings
from frazil.node.health.readiness import SilentTopics
from frazil.node.tiers.logs import FileView
from frazil.objects.loading import load_objects
from frazil.objects.opening import open_objects

TOPIC = "/shop/orders"


def settings(folder: Path, **more: Any) -> frazil.Settings:
    store = {"type": "local", "path": str(folder / "store")}
    objects = {"enabled": True, "store": store, "gather_ms": 1}
    return make_settings({"data": str(folder / "data"), "objects": objects, **more})


def payloads(topic: frazil.Topic) -> list[bytes]:
    return [message.payload for message in topic.read()]


def test_a_folder_with_an_object_store_has_topics_of_level_object(tmp_path: Path) -> None:
    with frazil.open(settings(tmp_path, wal={"ack": "object"})) as storage:
        topic = storage.topic(TOPIC)
        assert topic.log.ack is AckLevel.OBJECT
        assert [topic.publish(b"%d" % number) for number in range(5)] == [0, 1, 2, 3, 4]
        found = load_objects(open_objects(settings(tmp_path)), topic.log.log_id, None)
        assert found.end == 5
        assert found.epoch == 1  # nobody else has stored rows of it
        assert topic.sync() == 5
    with frazil.open(settings(tmp_path)) as storage:
        assert payloads(storage.topic(TOPIC)) == [b"%d" % number for number in range(5)]


def test_rows_that_the_files_have_lost_are_read_from_the_objects(tmp_path: Path) -> None:
    with frazil.open(settings(tmp_path)) as storage:
        topic = storage.create_topic(TOPIC, ack="object")
        for number in range(10):
            topic.publish(b"%d" % number)
    for segment in (tmp_path / "data/log/shop/orders").glob("*.wal"):
        segment.unlink()
    with frazil.open(settings(tmp_path)) as storage:
        topic = storage.topic(TOPIC)
        assert topic.publish(b"10") == 10
        assert topic.log.first_offset == 10
        assert payloads(topic) == [b"%d" % number for number in range(11)]


def test_a_topic_of_level_object_needs_the_object_store(tmp_path: Path) -> None:
    with frazil.open(settings(tmp_path)) as storage:
        storage.create_topic(TOPIC, ack="object").publish(b"a")
    with frazil.open(frazil.Settings(data=tmp_path / "data")) as storage:
        with pytest.raises(InvalidInput, match=r"objects\.enabled"):
            storage.topic(TOPIC)
        storage.topic("/shop/other").publish(b"b")
    shutil.rmtree(tmp_path / "store")


def test_a_topic_that_acknowledges_nothing_is_reported_and_goes_on_by_itself(tmp_path: Path) -> None:
    with frazil.open(settings(tmp_path)) as storage, ThreadPoolExecutor(1) as thread:
        topic = storage.create_topic(TOPIC, ack="object")
        topic.publish(b"a")
        silent = SilentTopics(storage)
        assert silent() == []
        (tmp_path / "store").rename(tmp_path / "away")
        (tmp_path / "store").touch()  # what is no folder can hold no objects
        waiting = thread.submit(topic.publish, b"b")
        wait_until(lambda: bool(silent()))
        (reported,) = silent()
        assert (reported["topic"], reported["error"]) == (TOPIC, "object_store_unavailable")
        assert "acknowledges nothing now" in reported["message"]
        (tmp_path / "store").unlink()
        (tmp_path / "away").rename(tmp_path / "store")
        assert waiting.result(30) == 1
        assert silent() == []


def wait_until(check: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(2_000):
        if check():
            return
        pause.wait(0.01)
    raise AssertionError("it did not happen in time")


def test_a_deleted_topic_of_level_object_leaves_no_objects(tmp_path: Path) -> None:
    with frazil.open(settings(tmp_path)) as storage:
        first = storage.create_topic(TOPIC, ack="object")
        first.publish(b"a")
        storage.delete_topic(TOPIC)
        again = storage.create_topic(TOPIC, ack="object")
        assert again.publish(b"b") == 0
        assert again.log.log_id != first.log.log_id
        assert payloads(again) == [b"b"]


def test_rows_that_were_never_stored_are_read_by_nobody(tmp_path: Path) -> None:
    """The first rows of a topic are in its files, and its server is gone: no object says that they count."""
    with frazil.open(settings(tmp_path)) as storage:
        topic = storage.create_topic(TOPIC, ack="object")
        topic.publish(b"a")
        log_id = topic.log.log_id
    shutil.rmtree(tmp_path / "store" / "wal" / log_id)
    for meta in (tmp_path / "data").glob("*.db*"):
        meta.unlink()
    (info,) = FileView(settings(tmp_path)).logs()
    assert info.is_in_objects
    assert (info.first_offset, info.durable_end, info.files) == (0, 0, ())
