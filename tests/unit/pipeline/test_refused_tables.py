"""A mover that refuses a table looks at it anew at its next try: once a person has mended it, the topic is moved on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

import frazil
from frazil.core.settings import Settings, make_settings
from frazil.lake.catalogs.opening import catalog_properties, open_catalog
from frazil.lake.tables.accept import accept
from frazil.lake.tables.schema import TableName
from frazil.lake.tables.store import TableStore
from frazil.node.movers.log_source import OwnLogs
from frazil.pipeline.move.mover import Mover
from frazil.telemetry.signals import Signal
from frazil.testing import FakeClock
from frazil.testing.jobs import InProcessJobs
from parts.otlp_requests import append, points

METRICS = "/acme.default/metrics"
ORDERS, TABLE = "/shop/orders", ("shop", "orders")

Cure = Callable[[Catalog, frazil.Storage], object]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings({"data": tmp_path / "data"})


def new_mover(settings: Settings, storage: frazil.Storage) -> Mover:
    properties = catalog_properties(settings)
    tables = TableStore(open_catalog(settings), properties.get("warehouse"), properties)
    return Mover(settings, OwnLogs(storage), tables, InProcessJobs(), FakeClock(), lambda _: None)


def dropped(catalog: Catalog, _: frazil.Storage) -> None:
    catalog.drop_table(TABLE)


def renamed(catalog: Catalog, _: frazil.Storage) -> None:
    catalog.rename_table(TABLE, ("shop", "orders_before"))


def accepted(catalog: Catalog, storage: frazil.Storage) -> None:
    accept(catalog, TableName(*TABLE), storage.topic(ORDERS).log.log_id, 0, "by a person")


def table_payloads(catalog: Catalog) -> list[bytes]:
    found: list[bytes] = catalog.load_table(TABLE).scan().to_arrow().sort_by("_offset")["_payload"].to_pylist()
    return found


@pytest.mark.parametrize("cure", [dropped, renamed])
def test_a_topic_made_again_is_moved_once_the_earlier_ones_table_is_out_of_the_way(
    settings: Settings, cure: Cure
) -> None:
    with frazil.open(settings) as storage:
        mover, catalog = new_mover(settings, storage), open_catalog(settings)
        storage.topic(ORDERS).publish(b"of the earlier topic")
        assert mover.tick(all_of_it=True).failures == 0
        storage.delete_topic(ORDERS)
        storage.topic(ORDERS).publish(b"new")
        assert "an earlier topic" in str(mover.tick(all_of_it=True).topics[ORDERS].error)
        cure(catalog, storage)
        assert mover.tick(all_of_it=True).topics[ORDERS].error is None
        assert table_payloads(catalog) == [b"new"]


def test_a_table_that_was_rolled_back_is_moved_on_once_it_is_accepted(settings: Settings) -> None:
    with frazil.open(settings) as storage:
        mover, catalog = new_mover(settings, storage), open_catalog(settings)
        for payload in (b"one", b"two"):
            storage.topic(ORDERS).publish(payload)
            assert mover.tick(all_of_it=True).failures == 0
        table = catalog.load_table(TABLE)
        table.manage_snapshots().rollback_to_snapshot(table.snapshots()[0].snapshot_id).commit()
        storage.topic(ORDERS).publish(b"three")
        for _ in range(2):
            assert "rolled back" in str(mover.tick(all_of_it=True).topics[ORDERS].error)
        accepted(catalog, storage)
        assert mover.tick(all_of_it=True).topics[ORDERS].error is None
        assert table_payloads(catalog) == [b"one", b"two", b"three"]


def test_a_mover_that_remembers_the_table_of_an_earlier_topic_does_not_refuse_the_new_one(settings: Settings) -> None:
    with frazil.open(settings) as storage:
        mover, other, catalog = new_mover(settings, storage), new_mover(settings, storage), open_catalog(settings)
        storage.topic(ORDERS).publish(b"of the earlier topic")
        assert mover.tick(all_of_it=True).failures == 0
        storage.delete_topic(ORDERS)
        catalog.drop_table(TABLE)
        storage.topic(ORDERS).publish(b"new")
        assert other.tick(all_of_it=True).failures == 0
        storage.topic(ORDERS).publish(b"newer")
        assert mover.tick(all_of_it=True).failures == 0
        assert table_payloads(catalog) == [b"new", b"newer"]


def test_tables_of_telemetry_get_no_rows_of_two_logs_with_the_same_offsets(settings: Settings) -> None:
    tables = [("acme.default", name) for name in ("metrics", "metrics_gauge", "metrics_sum")]
    with frazil.open(settings) as storage:
        mover, catalog = new_mover(settings, storage), open_catalog(settings)
        append(storage, METRICS, Signal.METRICS, points(1), points(2))
        assert mover.tick(all_of_it=True).failures == 0
        storage.delete_topic(METRICS)
        append(storage, METRICS, Signal.METRICS, points(3))
        for name in tables:
            error = str(mover.tick(all_of_it=True).topics[METRICS].error)
            assert error.startswith(f"{'.'.join(name)} holds the rows of an earlier topic of that name")
            catalog.rename_table(name, (name[0], f"{name[1]}_before"))
        assert mover.tick(all_of_it=True).topics[METRICS].error is None
        assert [catalog.load_table(name).scan().count() for name in tables] == [2, 2, 2]
        assert [catalog.load_table((name[0], f"{name[1]}_before")).scan().count() for name in tables] == [4, 4, 4]
