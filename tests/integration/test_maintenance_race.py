"""Maintenance on S3 while rows are published, moved and removed from the log, and everyone reads: each row once.

The REST catalog forbids to delete, so there it is compaction alone. It keeps one snapshot, so a compaction that meets a
commit can't be rebased: the last one has no moves beside it. With the other catalog snapshots are expired and orphans
removed at once, with no time left to readers.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyspark.sql import SparkSession

import frazil
from frazil.core.clock import SystemClock
from frazil.core.errors import TryLater
from frazil.core.settings import RetentionSettings, Settings, make_settings
from frazil.lake.catalogs.spark import spark_options
from frazil.pipeline.maintenance.procedures import Maintenance, orphan_before_ms
from parts.every_reader import FACES, EveryReader
from parts.moving import Floor, HandMover, open_guarded
from parts.nessie import WAREHOUSE
from parts.s3 import S3
from parts.table_rewrites import rewrite

pytestmark = pytest.mark.timeout(400)

TURNS_MAX = 400
PAUSE_S = 0.3


class Worker(threading.Thread):
    """Does one thing again and again until it is told to stop, or has done it often enough."""

    def __init__(self, name: str, step: Callable[[], None], times: int, stop: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self._step, self._times, self._stop_asked = step, times, stop
        self.done = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while self.done < self._times and not self._stop_asked.is_set():
                self._step()
                self.done += 1
                self._stop_asked.wait(PAUSE_S)
        except BaseException as error:  # noqa: BLE001 - told to the test
            self.error = error


class Race:
    """Without a session the table is rewritten by PyIceberg, as a compaction might leave it."""

    def __init__(
        self, settings: Settings, config: Path, storage: frazil.Storage, floor: Floor, session: SparkSession | None
    ) -> None:
        self.settings, self.storage, self.floor = settings, storage, floor
        self.topic = storage.topic(f"/r{uuid.uuid4().hex[:8]}/orders")
        storage.set_retention(self.topic.name, RetentionSettings(bytes=1))
        self.mover = HandMover(settings)
        self.every = EveryReader(settings, self.topic, config)
        self.maintenance = None if session is None else Maintenance(settings, session)
        self.compacted = self.expired = 0
        self.tried_later: list[str] = []
        self.seen = dict.fromkeys(FACES, 0)

    def move(self) -> None:
        """As two files, so that there is always something to compact; then retention removes what it may."""
        end = self.topic.stats().end
        self.topic.publish_many([f"{offset}:".encode().ljust(400) for offset in range(end, end + 100)])
        self.floor.ends[self.topic.log.log_id] = self.mover.move(self.topic, files=2)
        self.storage.maintain()

    def read(self, face: str) -> None:
        """All rows from the first one on, and never fewer than were there before."""
        least = self.mover_end
        rows = self.every.rows(face)
        assert [offset for offset, _ in rows] == list(range(len(rows))), face
        assert all(payload.startswith(f"{offset}:".encode()) for offset, payload in rows), face
        assert len(rows) >= least, face
        self.seen[face] += 1

    @property
    def mover_end(self) -> int:
        return self.floor.ends.get(self.topic.log.log_id, 0)

    def keep(self) -> None:
        """A round that met the mover's commits too often is no failure: the next does its work."""
        clock, name = SystemClock(), self.every.name
        try:
            if self.maintenance is None:
                rewrite(self.mover.table(self.topic), "_offset >= 0", seed=self.compacted, cuts=3)
                self.compacted += 1
                return
            self.compacted += self.maintenance.compact(name).files_before
            if self.maintenance_may_delete:
                self.expired += self.maintenance.expire(name, clock.now_us() // 1_000, 1).snapshots
                self.maintenance.orphans(name, orphan_before_ms(self.settings, clock, None), dry_run=False)
        except (TryLater, CommitFailedException, ValidationException) as error:
            self.tried_later.append(str(error))

    @property
    def maintenance_may_delete(self) -> bool:
        return self.settings.catalog.type.value != "rest"


def sections_of(lake: str, folder: Path, s3: S3, request: pytest.FixtureRequest) -> dict[str, Any]:
    sections: dict[str, Any] = {"data": str(folder / "data"), "maintenance": {"files_min": 2}}
    sections["wal"] = {"max_file_size": 64 * 1024, "cache_bytes": 64 * 1024}
    sections["catalog"] = {"name": f"c{uuid.uuid4().hex}"}
    if lake == "rest":
        sections["catalog"] |= {"type": "rest", "uri": request.getfixturevalue("rest_catalog").uri}
        return {**sections, "object_store": s3.settings(WAREHOUSE)}
    return {**sections, "object_store": s3.settings(s3.make_bucket(f"race-{uuid.uuid4().hex[:8]}"))}


@pytest.mark.parametrize(
    ("lake", "rounds", "by_spark"),
    [
        ("rest", 3, False),
        pytest.param("rest", 8, True, marks=pytest.mark.long),
        pytest.param("sqlite", 6, True, marks=pytest.mark.long),
    ],
)
def test_mover_maintenance_and_every_reader_at_once(
    lake: str, rounds: int, by_spark: bool, tmp_path: Path, s3: S3, request: pytest.FixtureRequest
) -> None:
    sections = sections_of(lake, tmp_path, s3, request)
    config = tmp_path / "frazil.yaml"
    config.write_text(json.dumps(sections))
    settings = make_settings(sections)
    session = request.getfixturevalue("spark") if by_spark else None
    for option, value in spark_options(settings).items() if session is not None else ():
        session.conf.set(option, value)
    floor = Floor()
    with open_guarded(settings, floor) as storage:
        race, stop = Race(settings, config, storage, floor, session), threading.Event()
        for _ in range(3):
            race.move()
        keeper = Worker("maintenance", race.keep, rounds, stop)
        readers = [Worker(face, lambda face=face: race.read(face), TURNS_MAX, stop) for face in FACES]  # type: ignore[misc]
        for each in (keeper, *readers):
            each.start()
        for _ in range(TURNS_MAX):
            race.move()
            keeper.join(1.0)  # a mover that commits without pause wins every time
            if not keeper.is_alive():
                break
        race.keep()  # without moves: see above
        stop.set()
        for each in (keeper, *readers):
            each.join(120)
            assert not each.is_alive()
            if each.error is not None:
                raise AssertionError(f"{each.name}: {each.error!r}") from each.error
        end = race.mover_end
        for face in FACES:
            assert [offset for offset, _ in race.every.rows(face)] == list(range(end)), face
        assert race.every.proof().proven
        assert race.topic.log.first_offset > 0, "some rows are in the table alone"
    assert all(race.seen.values()), race.seen
    assert race.compacted > 0, race.tried_later
    assert race.expired > 0 or lake == "rest", race.tried_later
