"""The tables of telemetry in a catalog of files and behind REST with S3: names with a dot, sort orders, tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.core.clock import SystemClock
from frazil.core.settings import Settings
from frazil.lake.catalogs.opening import catalog_properties, open_catalog
from frazil.lake.tables.store import TableStore
from frazil.node.movers.log_source import OwnLogs
from frazil.node.verify.proofs import prove
from frazil.pipeline.move.mover import Mover
from frazil.telemetry.signals import Signal
from frazil.testing.jobs import InProcessJobs
from parts.fixtures import lakes_of
from parts.meddling import Meddling
from parts.otlp_requests import NOT_PROTOBUF, append, points


@pytest.mark.parametrize("kind", lakes_of("sqlite", "rest"))
def test_the_tables_of_telemetry_are_filled_once(
    kind: str, lake_settings: Callable[[str], Settings], tmp_path: Path
) -> None:
    settings = lake_settings(kind).model_copy(update={"data": tmp_path / "data"})
    catalog, commits = open_catalog(settings), list[int]()
    tenant = f"acme{tmp_path.name.replace('_', '')[-20:]}".lower()
    topic = f"/{tenant}.default/metrics"

    def on_commit(number: int, commit: Callable[[], Any]) -> Any:
        commits.append(number)
        done = commit()
        if len(commits) == 6:  # after four that create tables
            raise TimeoutError("no answer")
        return done

    properties = catalog_properties(settings)
    with frazil.open(settings) as storage:
        append(storage, topic, Signal.METRICS, points(0), NOT_PROTOBUF, points(2))
        meddling: Any = Meddling(catalog, on_commit)
        tables = TableStore(meddling, properties.get("warehouse"), properties)
        mover = Mover(settings, OwnLogs(storage), tables, InProcessJobs(), SystemClock(), lambda _: None)
        assert mover.tick(all_of_it=True).failures == 0
        append(storage, topic, Signal.METRICS, points(3))
        assert mover.tick(all_of_it=True).failures == 0
        (proof,) = prove(settings, topic, lambda _: lambda _: None)
    assert proof.problems == []
    assert proof.tables == {"metrics": 6, "metrics_gauge": 6, "metrics_sum": 6, "metrics__errors": 1}
    table = catalog.load_table((f"{tenant}.default", "metrics_sum"))
    assert [field.direction.value for field in table.sort_order().fields] == ["asc", "asc"]
