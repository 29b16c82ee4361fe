"""A log with a few dozen frames in several segments, uploaded to a store in memory; and servers that share a store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from acked_servers import Serve, Server
from object_rows import EACH, END, SCHEMA, TOPIC, numbers

import frazil
from frazil.core.settings import make_settings
from frazil.log.storage import Storage, open_storage
from frazil.objects.opening import open_objects
from frazil.objects.store import ObjectStore
from frazil.testing import FakeClock
from frazil.testing.faulty_disk import PowerCut
from parts.faulty_store import FaultyStore
from parts.uploading import HandUploader


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    store = {"type": "memory", "bucket": str(tmp_path)}
    return open_objects(make_settings({"objects": {"enabled": True, "store": store}}))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def storage(clock: FakeClock) -> Iterator[frazil.Storage]:
    settings = make_settings({"wal": {"max_file_size": 256 * 1024, "cache_bytes": 0}})
    with open_storage(settings.model_copy(update={"data": None}), clock=clock) as storage:
        yield storage


@pytest.fixture
def uploader(storage: frazil.Storage, clock: FakeClock, store: ObjectStore) -> HandUploader:
    topic = storage.topic(TOPIC, schema=SCHEMA)
    for first in range(0, END, EACH):
        topic.publish_many(numbers(first))
        clock.advance(1_000)
    made = HandUploader(store, topic.log)
    assert made.upload() == END
    assert len(made.objects.all()) > 8
    return made


@pytest.fixture
def serve(store: FaultyStore) -> Iterator[Serve]:
    opened: list[Storage] = []

    def make(*arguments: object, **named: object) -> Server:
        server = Server(store, *arguments, **named)  # type: ignore[arg-type]
        opened.append(server.storage)
        return server

    yield make
    store.is_away, store.before_create = False, lambda name: None
    for storage in opened:
        with contextlib.suppress(frazil.FrazilError, PowerCut):  # of servers that a test has killed
            storage.close()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as pool:
        yield pool
