"""The mover with its tasks run in this process: the seam for jobs needs no JVM."""

from __future__ import annotations

from pathlib import Path

import pytest

import frazil
from frazil.core.settings import Settings, make_settings
from frazil.lake.catalogs.opening import catalog_properties, open_catalog
from frazil.lake.tables.store import TableStore
from frazil.node.movers.log_source import OwnLogs
from frazil.pipeline.move.jobs import JobRunner
from frazil.pipeline.move.mover import Mover
from frazil.testing import FakeClock
from frazil.testing.jobs import InProcessJobs

ORDERS = "/shop/orders"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings({"data": tmp_path / "data"})


def mover_of(settings: Settings, storage: frazil.Storage, jobs: JobRunner) -> Mover:
    properties = catalog_properties(settings)
    tables = TableStore(open_catalog(settings), properties.get("warehouse"), properties)
    return Mover(settings, OwnLogs(storage), tables, jobs, FakeClock(), lambda _: None)


def payloads(settings: Settings) -> list[bytes]:
    rows = open_catalog(settings).load_table(("shop", "orders")).scan().to_arrow().sort_by("_offset")
    found: list[bytes] = rows["_payload"].to_pylist()
    return found


def test_a_tick_moves_all_rows_without_spark(settings: Settings) -> None:
    with frazil.open(settings) as storage:
        storage.topic(ORDERS).publish_many([b"tea", b"rice", b"milk"])
        report = mover_of(settings, storage, InProcessJobs()).tick(all_of_it=True)
    assert (report.rows, report.commits, report.failures) == (3, 1, 0)
    assert payloads(settings) == [b"tea", b"rice", b"milk"]


def test_what_happens_between_plan_and_commit_is_seen_by_the_next_tick(settings: Settings) -> None:
    with frazil.open(settings) as storage:
        topic = storage.topic(ORDERS)
        topic.publish(b"tea")
        late = iter([b"late"])

        def publish_late() -> None:
            for payload in late:
                topic.publish(payload)

        mover = mover_of(settings, storage, InProcessJobs(meanwhile=publish_late))
        assert mover.tick(all_of_it=True).rows == 1
        assert mover.tick(all_of_it=True).rows == 1
    assert payloads(settings) == [b"tea", b"late"]


def test_a_statement_is_refused_where_there_is_no_spark(settings: Settings) -> None:
    rules = {"topics": {ORDERS: {"sql": "SELECT _payload FROM topic"}}}
    with frazil.open(make_settings({"data": settings.data, **rules})) as storage:
        storage.topic(ORDERS).publish(b"tea")
        report = mover_of(storage.settings, storage, InProcessJobs()).tick(all_of_it=True)
    assert report.topics[ORDERS].error is not None
    assert "needs Spark" in report.topics[ORDERS].error
