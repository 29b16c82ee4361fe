"""The tables of a topic of telemetry may end at different offsets: a restored log goes on behind the furthest."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.core.clock import SystemClock
from frazil.core.settings import make_settings
from frazil.log.storage import open_storage
from frazil.node.movers.accepting import accept_topic
from frazil.node.restore.restore import restore
from frazil.node.tiers.objects import object_store_of
from frazil.telemetry.signals import Signal
from parts.in_process import MoverHere
from parts.meddling import Meddling
from parts.otlp_requests import append, points
from parts.uploading import upload_log

METRICS = "/acme.default/metrics"


def crash_at_third(number: int, commit: Callable[[], Any]) -> Any:
    """Between the commits of the derived tables and that of the topic's own one."""
    if number == 3:
        raise KeyboardInterrupt
    return commit()


@pytest.mark.parametrize("crashes", [False, True])
def test_a_log_goes_on_behind_the_table_that_has_most(tmp_path: Path, crashes: bool) -> None:
    place = {
        "objects": {"enabled": True, "store": {"type": "local", "path": str(tmp_path / "bucket")}},
        "catalog": {"type": "sql", "uri": f"sqlite:///{tmp_path / 'catalog.db'}"},
        "object_store": {"type": "local", "path": str(tmp_path / "lake")},
    }
    lost, fresh = (make_settings({"data": str(tmp_path / name), **place}) for name in ("lost", "fresh"))
    with open_storage(lost) as storage:
        append(storage, METRICS, Signal.METRICS, points(0))
        mover = MoverHere(lost, storage, clock=SystemClock())
        assert mover.tick().failures == 0
        upload_log(object_store_of(lost), storage.topic(METRICS).log)
        append(storage, METRICS, Signal.METRICS, points(1))
        if crashes:
            catalog: Any = Meddling(mover.catalog, crash_at_third)
            with pytest.raises(KeyboardInterrupt):
                MoverHere(lost, storage, clock=SystemClock(), catalog=catalog).tick()
        else:
            assert mover.tick().failures == 0
    shutil.rmtree(str(lost.data))
    (one,) = restore(fresh).logs
    assert (one.objects_end, one.table_end, one.end) == (1, 2, 2)

    def ticked(storage: frazil.Storage) -> str | None:
        return MoverHere(fresh, storage, clock=SystemClock()).tick().topics[METRICS].error_code

    with open_storage(fresh) as storage:
        append(storage, METRICS, Signal.METRICS, points(2))
        assert ticked(storage) == ("rows_missing" if crashes else None)
    if crashes:
        accept_topic(fresh, METRICS)
        with open_storage(fresh) as storage:
            assert ticked(storage) is None
    tables = {"metrics": [0, 0, 2, 2] if crashes else [0, 0, 1, 1, 2, 2], "metrics_gauge": [0, 0, 1, 1, 2, 2]}
    for name, wanted in tables.items():
        found = mover.catalog.load_table(("acme.default", name)).scan().to_arrow()["_offset"].to_pylist()
        assert sorted(found) == wanted
