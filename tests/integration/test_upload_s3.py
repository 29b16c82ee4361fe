"""An S3 server that fails in every way: publishing goes on, the upload catches up, and no row is lost or doubled."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import frazil
from frazil.core.settings import Settings, make_settings
from frazil.node.health.readiness import UploadProblems
from frazil.node.objects.parts import ObjectParts
from frazil.objects.loading import load_objects
from frazil.objects.opening import open_objects
from frazil.objects.reading import ObjectReader
from parts.processes import pause
from parts.s3 import S3, s3_server
from parts.s3_proxy import S3Proxy, s3_proxy_before

TOPIC = "/shop/orders"
WAIT_SECONDS_MAX = 60.0
APPLIED = ("cut", "error with 200")
"""The object is there, and only the body of the answer is wrong: a put has none."""


@pytest.fixture(scope="module")
def s3(parts_folder: Path) -> Iterator[S3]:
    with s3_server(parts_folder / "upload-s3") as server:
        yield server


@pytest.fixture
def proxy(s3: S3) -> Iterator[S3Proxy]:
    with s3_proxy_before(s3.port) as proxy:
        yield proxy


def settings_of(folder: Path, s3: S3, bucket: str, **changed: str) -> Settings:
    return make_settings(
        {
            "data": str(folder / "data"),
            "wal": {"max_file_size": 64 * 1024, "cache_bytes": 0},
            "pipeline": {"enabled": False},
            "objects": {
                "enabled": True,
                "open_interval_ms": 100,
                "timeout_ms": 1_000,
                "store": s3.settings(bucket, **changed),
            },
        }
    )


def until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_SECONDS_MAX
    while not reached():
        assert time.monotonic() < end, "it does not happen"
        pause(0.05)


def publish(storage: frazil.Storage, count: int) -> frazil.Topic:
    topic = storage.topic(TOPIC)
    for number in range(topic.log.durable_end, topic.log.durable_end + count):
        assert topic.publish(f"{number} ".encode() * 500) == number
    return topic


def uploaded(settings: Settings, log_id: str) -> list[int]:
    """Return the numbers that the store has, by a listing alone."""
    store = open_objects(settings)
    found = load_objects(store, log_id, None).objects
    assert all(one.end == following.first for one, following in itertools.pairwise(found))
    batches = ObjectReader(store, found, 0)
    return [int(bytes(each).split()[0]) for one in batches for each in one.rows.column("_payload").to_pylist()]


@pytest.mark.parametrize("fault", ["500", "503", "403", "507", "silent", "cut", "error with 200", "slow"])
def test_publishing_goes_on_and_the_upload_catches_up(tmp_path: Path, s3: S3, proxy: S3Proxy, fault: str) -> None:
    bucket = s3.make_bucket(f"b{uuid.uuid4().hex[:12]}")
    direct, behind = (settings_of(tmp_path, s3, bucket, **more) for more in ({}, {"endpoint": proxy.endpoint}))
    with frazil.open(behind) as storage:
        parts = storage.attachment
        assert isinstance(parts, ObjectParts)
        topic = publish(storage, 50)
        parts.uploader.finish(topic.log)
        proxy.fail(fault)
        started = time.monotonic()
        publish(storage, 150)
        assert time.monotonic() - started < 20
        until(lambda: proxy.met > 0)
        if fault not in APPLIED:
            until(lambda: bool(UploadProblems(storage)()))
            (problem,) = UploadProblems(storage)()
            assert (problem["topic"], problem["error"]) == (TOPIC, "object_store_unavailable")
        publish(storage, 10)
        assert [int(one.payload.split()[0]) for one in topic.read("earliest")] == list(range(210))
        proxy.mend()
        assert parts.uploader.finish(topic.log) == 210
        assert UploadProblems(storage)() == []
        assert uploaded(direct, topic.log.log_id) == list(range(210))


def test_a_store_that_refuses_the_key_is_named_and_publishing_goes_on(tmp_path: Path, s3: S3) -> None:
    bucket = s3.make_bucket(f"b{uuid.uuid4().hex[:12]}")
    with frazil.open(settings_of(tmp_path, s3, bucket, secret_access_key="wrong")) as storage:
        publish(storage, 20)
        until(lambda: bool(UploadProblems(storage)()))
        (problem,) = UploadProblems(storage)()
        assert problem["topic"] == TOPIC
        assert "wrong" not in problem["message"]
        publish(storage, 20)
    with frazil.open(settings_of(tmp_path, s3, bucket)) as storage:
        parts = storage.attachment
        assert isinstance(parts, ObjectParts)
        topic = storage.topic(TOPIC)
        assert parts.uploader.finish(topic.log) == 40
        assert uploaded(settings_of(tmp_path, s3, bucket), topic.log.log_id) == list(range(40))
