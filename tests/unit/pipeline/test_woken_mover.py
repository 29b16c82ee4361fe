"""A mover that was stopped in the middle of its work while another led, and is woken: it acts on no stale fact.

What another mover does meanwhile happens at the very moment, in the same process; `tests/crash` stops real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.core.settings import Settings, make_settings
from frazil.lake.catalogs.opening import open_catalog
from frazil.pipeline.move.tasks import RangeInput, RangeOutput
from frazil.testing import FakeClock
from frazil.testing.jobs import InProcessJobs
from parts.in_process import MoverHere
from parts.meddling import Meddling

ORDERS = "/shop/orders"
HOUR_US = 3_600_000_000
OFTEN = 24
"""More commits than versions of the metadata that are kept."""
MOMENTS = ("planned", "files written", "asked", "metadata written", "committed")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings({"data": tmp_path / "data", "maintenance": {"snapshots_max": 4, "snapshots_min": 2}})


class _Jobs(InProcessJobs):
    def __init__(self, reach: Callable[[str], None]) -> None:
        super().__init__(meanwhile=lambda: reach("planned"))
        self._reach = reach

    def run(self, tasks: Sequence[Sequence[RangeInput]]) -> list[RangeOutput]:
        outputs = super().run(tasks)
        self._reach("files written")
        return outputs


class Stopped:
    """A mover that stops once at a moment of a tick, for as long as `meanwhile` takes."""

    def __init__(self, settings: Settings, storage: frazil.Storage, moment: str, meanwhile: Callable[[], None]) -> None:
        self._moment, self._meanwhile, self.armed = moment, meanwhile, False
        real: Any = open_catalog(settings)
        write = real._write_metadata

        def written(*arguments: Any, **named: Any) -> None:
            write(*arguments, **named)
            self._reach("metadata written")

        real._write_metadata = written
        self.clock = FakeClock()
        self.here = MoverHere(
            settings,
            storage,
            jobs=_Jobs(self._reach),
            clock=self.clock,
            catalog=Meddling(real, self._commit),  # type: ignore[arg-type]
        )

    def _commit(self, _: int, real: Callable[[], Any]) -> Any:
        self._reach("asked")
        answer = real()
        self._reach("committed")
        return answer

    def _reach(self, moment: str) -> None:
        if self.armed and moment == self._moment:
            self.armed = False
            self._meanwhile()


@pytest.mark.parametrize("moment", MOMENTS)
def test_nothing_is_doubled_and_no_file_that_the_table_needs_is_deleted(
    settings: Settings, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another moves so often meanwhile that snapshots, manifests and versions of the metadata are removed."""
    monkeypatch.setattr("frazil.lake.maintenance.expired_files.READERS_MS", 0)
    monkeypatch.setattr("frazil.lake.maintenance.expired_files.SWEEP_COUNT", 1)
    count = 0

    def publish() -> None:
        nonlocal count
        storage.topic(ORDERS).publish(str(count))
        count += 1

    def lead(mover: MoverHere, times: int = 6) -> None:
        for _ in range(times):
            publish()
            assert mover.errors() == {ORDERS: None}

    with frazil.open(settings) as storage:
        other = MoverHere(settings, storage)
        stopped = Stopped(settings, storage, moment, lambda: lead(other, OFTEN))
        lead(stopped.here)
        publish()
        stopped.armed = True
        assert stopped.here.errors() == {ORDERS: None}
        assert not stopped.armed
        whole(other, count)
        lead(stopped.here)
        lead(other)
        whole(other, count)
    for mover in (other, stopped.here):
        mover.mover._tables._sweeper._pool.shutdown()
    whole(other, count)


def whole(here: MoverHere, count: int) -> None:
    """Each row once, and every file that any snapshot names is there."""
    assert [row["_payload"] for row in here.rows(ORDERS)] == [str(number).encode() for number in range(count)]
    table = here.table(ORDERS)
    for snapshot in table.snapshots():
        for manifest in snapshot.manifests(table.io):
            for entry in manifest.fetch_manifest_entry(table.io):
                assert table.io.new_input(entry.data_file.file_path).exists()


@pytest.mark.parametrize("moment", ["files written", "asked"])
def test_files_that_may_be_orphans_by_now_are_not_committed(settings: Settings, moment: str) -> None:
    """It was stopped for days, and nobody else has moved: the table is as it was, but its files may be gone."""

    def days_pass() -> None:
        for path in (settings.data or Path()).rglob("*.parquet"):
            if str(path) not in before:
                path.unlink()
        stopped.clock.advance(80 * HOUR_US)
        if moment == "asked":
            raise ConnectionError("whom the catalog has not heard")

    with frazil.open(settings) as storage:
        stopped = Stopped(settings, storage, moment, days_pass)
        storage.topic(ORDERS).publish("0")
        assert stopped.here.errors() == {ORDERS: None}
        before = {str(path) for path in (settings.data or Path()).rglob("*.parquet")}
        storage.topic(ORDERS).publish("1")
        stopped.armed = True
        assert stopped.here.tick().rows == 0
        assert stopped.here.errors() == {ORDERS: None}
        whole(stopped.here, 2)
