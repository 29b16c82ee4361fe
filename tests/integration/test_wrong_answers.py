"""A store whose answers are wrong and look right: refused by everyone, never fewer rows, and right again when it is.

A proxy before the real S3 server cuts bodies, or sends errors as success.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.core.settings import RetentionSettings, make_settings
from parts.every_reader import FACES, EveryReader
from parts.in_process import MoverHere
from parts.moving import Floor, open_guarded
from parts.s3 import S3
from parts.s3_proxy import S3Proxy, s3_proxy_before

TOPIC = "/shop/orders"
PATIENCE = {"s3.request-timeout": "2", "s3.connect-timeout": "2"}
PLACES = {"metadata": ".metadata.json", "manifest list": "/metadata/snap-", "manifest": "-m0.avro", "data": "/data/"}


class World:
    """Rows that are only in the table, then some that are in both, then some that are in the log alone."""

    def __init__(self, folder: Path, s3: S3, proxy: S3Proxy) -> None:
        bucket = s3.make_bucket(f"wrong-{uuid.uuid4().hex[:8]}")
        store = s3.settings(bucket, endpoint=proxy.endpoint, properties=PATIENCE)
        sections: dict[str, Any] = {"data": str(folder / "data"), "object_store": store}
        sections["wal"] = {"max_file_size": 64 * 1024, "cache_bytes": 256 * 1024}
        config = folder / "frazil.yaml"
        config.write_text(json.dumps(sections))
        self.settings = make_settings(sections)
        floor = Floor()
        self.storage = open_guarded(self.settings, floor)
        self.topic = self.storage.topic(TOPIC)
        self.every = EveryReader(self.settings, self.topic, config)
        for _ in range(3):
            self.publish(500)
            self.move()
        floor.ends[self.topic.log.log_id] = 1_500
        self.storage.set_retention(TOPIC, RetentionSettings(bytes=1))
        self.storage.maintain()
        assert self.topic.log.first_offset > 500
        self.publish(100)

    def publish(self, count: int) -> None:
        end = self.topic.stats().end
        for start in range(end, end + count, 50):
            self.topic.publish_many([f"{number}:".encode().ljust(100) for number in range(start, start + 50)])

    def move(self) -> str | None:
        """By a mover that remembers nothing; its error."""
        (found,) = MoverHere(self.settings, self.storage).tick().topics.values()
        return found.error


@pytest.fixture
def proxy(s3: S3) -> Iterator[S3Proxy]:
    with s3_proxy_before(s3.port) as found:
        yield found


@pytest.fixture
def world(tmp_path: Path, s3: S3, proxy: S3Proxy) -> Iterator[World]:
    found = World(tmp_path, s3, proxy)
    yield found
    found.storage.close()


@pytest.mark.parametrize("fault", ["short", pytest.param("error with 200", marks=pytest.mark.long)])
def test_no_reader_takes_a_wrong_answer_for_fewer_rows(world: World, proxy: S3Proxy, fault: str) -> None:
    expected = {face: world.every.rows(face) for face in FACES}
    assert [offset for offset, _ in expected["sql"]] == list(range(1_600))
    for kind, place in PLACES.items():
        for face in FACES:
            proxy.fail(fault, place, writes=False)
            with pytest.raises((frazil.LakeUnavailable, frazil.TableDamaged)):
                world.every.rows(face)
            assert proxy.met > 0, kind
            proxy.mend()
            assert world.every.rows(face) == expected[face], kind


@pytest.mark.parametrize("fault", ["short", "error with 200"])
def test_no_proof_and_no_commit_is_built_on_a_wrong_answer(world: World, proxy: S3Proxy, fault: str) -> None:
    for kind, place in PLACES.items():
        proxy.fail(fault, place, writes=False)
        with contextlib.suppress(frazil.LakeUnavailable):  # of a lake, where no topic gets a right answer
            assert not world.every.proof().proven, kind
        if kind in ("metadata", "manifest list"):  # the others are not read for a commit
            assert world.move() is not None, kind
            assert proxy.met > 0
        proxy.mend()
        assert world.every.proof().proven, kind
    assert world.move() is None
    assert [offset for offset, _ in world.every.rows("read_only")] == list(range(1_600))
    assert world.every.proof().proven
