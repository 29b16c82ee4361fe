"""The store fails and comes back: a short fault is not noticed, a long one is told by name, and no row is lost.

A proxy before the real S3 server answers wrongly, late, by half or not at all. Spark runs the mover's jobs.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from frazil.core.settings import make_settings
from parts.engines import World, world
from parts.s3 import S3, SECRET_KEY
from parts.s3_proxy import S3Proxy, s3_proxy_before

HASTY = {"s3.request-timeout": "3", "s3.connect-timeout": "3"}
"""Soon enough for a test; a busy machine took more than a second for the answer of a healthy store."""
DATA, METADATA = "/data/", "/metadata/"


@pytest.fixture
def proxy(s3: S3) -> Iterator[S3Proxy]:
    with s3_proxy_before(s3.port) as found:
        yield found


@pytest.fixture
def hasty(s3: S3, proxy: S3Proxy, tmp_path: Path) -> Iterator[World]:
    with lake(s3, proxy, tmp_path, HASTY) as found:
        yield found


def lake(s3: S3, proxy: S3Proxy, folder: Path, properties: dict[str, str]) -> Any:
    bucket = s3.make_bucket(f"store-{uuid.uuid4().hex[:8]}")
    store = s3.settings(bucket, endpoint=proxy.endpoint, properties=properties)
    return world(make_settings({"data": folder, "object_store": store}), None)


def begin(both: World) -> None:
    both.publish("orders", 5)
    assert both.moved() == 5
    both.publish("orders", 5)


def offsets(both: World) -> list[int]:
    found = both.table().scan(selected_fields=("_offset",)).to_arrow()["_offset"].to_pylist()
    return sorted(found)


@pytest.mark.parametrize(
    ("fault", "place", "writes"),
    [
        pytest.param(fault, place, writes, marks=() if fault in quick else pytest.mark.long)
        for place, writes, quick in ((DATA, True, "silent"), (METADATA, True, "cut"), (METADATA, False, "503"))
        for fault in ("500", "503", "silent", "cut")
    ],
)
def test_a_short_fault_is_retried(hasty: World, proxy: S3Proxy, fault: str, place: str, writes: bool) -> None:
    begin(hasty)
    proxy.fail(fault, place, writes=writes, times=2)
    assert hasty.moved() == 5
    assert proxy.met == 2
    assert offsets(hasty) == list(range(10))


def test_a_store_that_is_only_slow_is_waited_for(s3: S3, proxy: S3Proxy, tmp_path: Path) -> None:
    """Slower than the AWS library waits by itself."""
    with lake(s3, proxy, tmp_path, {}) as both:
        begin(both)
        proxy.fail("slow", DATA, times=1)
        assert both.moved() == 5
        assert proxy.met == 1
        proxy.mend()
        assert offsets(both) == list(range(10))


@pytest.mark.parametrize(
    ("fault", "place"),
    [
        ("500", DATA),
        ("500", METADATA),
        pytest.param("silent", DATA, marks=pytest.mark.long),
        pytest.param("silent", METADATA, marks=pytest.mark.long),
    ],
)
def test_a_long_fault_is_told_by_name_and_the_log_takes_rows_meanwhile(
    hasty: World, proxy: S3Proxy, fault: str, place: str
) -> None:
    begin(hasty)
    proxy.fail(fault, place)
    with Publisher(hasty) as publisher:
        for _ in range(2):
            (topic,) = hasty.move().topics.values()
            told(topic.error, "object_store.endpoint", proxy.endpoint)
    assert publisher.slowest_s < 1.0
    proxy.mend()
    count = 10 + publisher.count
    while offsets(hasty) != list(range(count)):
        assert hasty.moved() > 0
    assert hasty.moved() == 0


def told(error: str | None, setting: str, place: str) -> None:
    """One line that names the store and says what to do, without a secret."""
    assert error is not None
    assert f"{setting}: " in error
    assert place in error
    assert "rows wait in the log" in error
    assert "\n" not in error
    assert "Traceback" not in error
    assert SECRET_KEY not in error


class Publisher:
    """Publishes without pause while the block runs, and tells the slowest acknowledgement."""

    def __init__(self, both: World) -> None:
        self._topic = both.topic("orders")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.count = 0
        self.slowest_s = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self.count > 0

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            start = time.monotonic()
            self._topic.publish(b"meanwhile")
            self.slowest_s = max(self.slowest_s, time.monotonic() - start)
            self.count += 1


@pytest.fixture
def small_warehouse(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB where the tables are."""
    place = tmp_path / "warehouse"
    place.mkdir()
    if os.getuid() != 0:
        pytest.skip("only root can mount a small file system")
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[World]:
    sections = {"data": tmp_path / "data", "object_store": {"path": tmp_path / "warehouse"}}
    with world(make_settings(sections), None) as found:
        yield found


def test_a_folder_that_cannot_be_written_is_told_and_the_move_goes_on_once_it_can(local: World, tmp_path: Path) -> None:
    """A file stands where the data files should be: that stops root too."""
    begin(local)
    data = tmp_path / "warehouse" / local.namespace / "orders" / "data"
    data.rename(data.with_name("aside"))
    data.write_bytes(b"")
    (topic,) = local.move().topics.values()
    assert topic.error is not None
    assert "object_store.path: " in topic.error
    assert "see whether it is a folder that can be written" in topic.error
    data.unlink()
    data.with_name("aside").rename(data)
    assert local.moved() == 5
    assert offsets(local) == list(range(10))


def test_a_full_disk_is_told_and_the_move_goes_on_once_there_is_room(small_warehouse: Path, local: World) -> None:
    begin(local)
    filler = small_warehouse / "filler"
    with filler.open("wb", buffering=0) as output, contextlib.suppress(OSError):
        while True:
            output.write(bytes(4096))
    (topic,) = local.move().topics.values()
    told(topic.error, "object_store.path", str(small_warehouse))
    assert "is full" in str(topic.error)
    filler.unlink()
    assert local.moved() == 5
    assert offsets(local) == list(range(10))
