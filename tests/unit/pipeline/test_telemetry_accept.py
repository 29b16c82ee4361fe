"""Tables of telemetry that lost rows: nothing is moved until `frazil pipeline accept`, and then they go on."""

from __future__ import annotations

from pathlib import Path

import pytest

import frazil
from frazil.core.clock import SystemClock
from frazil.core.settings import make_settings
from frazil.node.movers.accepting import accept_topic
from frazil.node.verify.proofs import prove
from frazil.telemetry.signals import Signal
from parts.in_process import MoverHere
from parts.otlp_requests import append, points

METRICS = "/acme.default/metrics"


@pytest.mark.parametrize("table", ["metrics", "metrics_gauge"])
@pytest.mark.parametrize("lost", ["dropped", "rolled back"])
def test_what_a_table_lost_is_accepted_by_the_administrator(tmp_path: Path, table: str, lost: str) -> None:
    settings = make_settings({"data": tmp_path / "data"})
    with frazil.open(settings) as storage:
        mover = MoverHere(settings, storage, clock=SystemClock())
        for number in range(2):
            append(storage, METRICS, Signal.METRICS, points(number))
            assert mover.tick().failures == 0
        name = ("acme.default", table)
        if lost == "dropped":
            mover.catalog.drop_table(name)
        else:
            first = mover.catalog.load_table(name).snapshots()[1].snapshot_id
            with mover.catalog.load_table(name).manage_snapshots() as change:
                change.rollback_to_snapshot(first)
        append(storage, METRICS, Signal.METRICS, points(2))
        mover = MoverHere(settings, storage, clock=SystemClock())
        report = mover.tick()
        if (table, lost) != ("metrics", "dropped"):  # that is filled again from the log, which has all of it
            wanted = {"dropped": "derived_table_behind", "rolled back": "table_rolled_back"}[lost]
            assert (report.topics[METRICS].error_code, report.commits) == (wanted, 0)
    accept_topic(settings, METRICS)
    with frazil.open(settings) as storage:
        mover = MoverHere(settings, storage, clock=SystemClock())
        for _ in range(2):
            assert mover.tick().failures == 0
        found = mover.catalog.load_table(name).scan().to_arrow()["_offset"].to_pylist()
        wanted_offsets = {
            ("metrics", "dropped"): [0, 0, 1, 1, 2, 2],
            ("metrics", "rolled back"): [0, 0, 1, 1, 2, 2],
            ("metrics_gauge", "dropped"): [2, 2],
            ("metrics_gauge", "rolled back"): [0, 0, 2, 2],
        }
        assert sorted(found) == wanted_offsets[table, lost]
        others = mover.catalog.load_table(("acme.default", "metrics_sum")).scan().to_arrow()
        assert sorted(others["_offset"].to_pylist()) == [0, 0, 1, 1, 2, 2]
        (proof,) = prove(settings, METRICS, lambda _: lambda _: None)
    assert ({problem.kind for problem in proof.problems} == set()) is (table == "metrics"), "what is lost stays named"
