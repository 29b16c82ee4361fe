"""Maintenance by Iceberg's own procedures: what each does, and that the mover and readers are never disturbed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import frazil
from frazil.core.clock import SystemClock
from frazil.core.errors import TableRefused, TryLater
from frazil.core.settings import Settings
from frazil.core.settings.lake import MaintenanceSettings
from frazil.lake.catalogs.spark import spark_options
from frazil.lake.maintenance.table_inspection import TableInspector
from frazil.lake.read.history import TableHistories
from frazil.lake.tables.schema import TableName
from frazil.log.info import log_info
from frazil.node.tiers.logs import FileView
from frazil.node.verify.proofs import prove
from frazil.node.verify.verify import TopicProof, verify
from frazil.pipeline.maintenance.procedures import Maintenance, orphan_before_ms
from frazil.telemetry.signals import Signal
from parts.danube import Server
from parts.movers import environment
from parts.moving import HandMover
from parts.otlp_requests import NOT_PROTOBUF, append, spans
from parts.processes import part

pytestmark = pytest.mark.timeout(300)

TOPIC, REQUESTS = "/shop/orders", "/acme.default/traces"
DAY_S = 86_400
ROUNDS = 4


def maintained(settings: Settings, session: SparkSession) -> tuple[Settings, Maintenance]:
    """A catalog of a name of its own: Spark keeps those that it has opened."""
    catalog = settings.catalog.model_copy(update={"name": f"c{uuid.uuid4().hex}"})
    settings = settings.model_copy(update={"catalog": catalog, "maintenance": MaintenanceSettings(files_min=2)})
    for name, value in spark_options(settings).items():
        session.conf.set(name, value)
    return settings, Maintenance(settings, session)


def proof(settings: Settings, storage: frazil.Storage, topic: frazil.Topic) -> TopicProof:
    history = TableHistories(settings).of(topic.log.name, topic.log.log_id)
    return verify(lambda: log_info(storage, TOPIC), FileView(settings).read, history, lambda _: None)


def publish(topic: frazil.Topic, count: int) -> None:
    end = topic.stats().end
    topic.publish_many([f"{number}:".encode() + b"x" * 50 for number in range(end, end + count)])


def test_a_table_is_kept_small_and_its_rows_as_they_were(
    spark: SparkSession, lake_settings: Callable[[str], Settings]
) -> None:
    settings, maintenance = maintained(lake_settings("sqlite"), spark)
    mover, inspector, clock = HandMover(settings), TableInspector(settings), SystemClock()
    with frazil.open(settings) as storage:
        topic = storage.topic(TOPIC)
        for _ in range(6):
            publish(topic, 100)
            mover.move(topic)
        name = mover.name(topic)
        folder = Path(mover.table(topic).location().removeprefix("file://"))
        young, old = folder / "data" / "young.parquet", folder / "data" / "old.parquet"
        for stray in (young, old):
            stray.write_bytes(b"of a task that died")
        os.utime(old, (old.stat().st_mtime - 4 * DAY_S,) * 2)

        assert inspector.compaction(name).files == 6
        compacted = maintenance.compact(name)
        assert (compacted.files_before, compacted.files_after) == (6, 1)
        (task,) = mover.table(topic).scan().plan_files()
        offsets = mover.table(topic).scan(selected_fields=("_offset",)).to_arrow()["_offset"].to_pylist()
        assert offsets == list(range(600)), "rows stand in the order of offsets"

        now = clock.now_us() // 1_000
        would = inspector.expiring(name, now, 1)
        expired = maintenance.expire(name, now, 1)
        assert len(would) == expired.snapshots >= 7
        assert expired.data_files == 6
        assert [each.snapshot_id for each in mover.table(topic).snapshots()] == [
            mover.table(topic).metadata.current_snapshot_id
        ]

        before_ms = orphan_before_ms(settings, clock, None)
        found = maintenance.orphans(name, before_ms, dry_run=True)
        assert [Path(path).name for path in found.files] == ["old.parquet"]
        assert old.exists()
        maintenance.orphans(name, before_ms, dry_run=False)
        assert not old.exists()
        assert young.exists()
        assert Path(urlsplit(task.file.file_path).path).exists()

        publish(topic, 50)
        assert mover.move(topic) == 650
        assert [message.offset for message in topic.read()] == list(range(650))
        assert proof(settings, storage, topic).proven


def test_tables_of_telemetry_stay_proven_sorted_and_partitioned_by_day(
    spark: SparkSession, lake_settings: Callable[[str], Settings]
) -> None:
    settings, maintenance = maintained(lake_settings("sqlite"), spark)
    mover, now_ns = HandMover(settings), SystemClock().now_us() * 1_000
    days_ns = (now_ns - DAY_S * 10**9, now_ns)
    with frazil.open(settings) as storage:

        def sent(numbers: range) -> frazil.Topic:
            for number in numbers:
                requests = [spans(number, 20, at_ns) for at_ns in days_ns]
                append(storage, REQUESTS, Signal.TRACES, *requests, NOT_PROTOBUF)
            return storage.topic(REQUESTS)

        for first in (0, 3, 6):
            topic = sent(range(first, first + 3))
            mover.move(topic)
        table, errors = (TableName("acme.default", name) for name in ("traces", "traces__errors"))
        before = mover.catalog.load_table(table.identifier)
        rows = before.scan().to_arrow().num_rows
        assert rows == 9 * 2 * 20
        assert len(list(before.scan().plan_files())) >= 6
        for name in (table, errors):
            maintenance.compact(name)
            maintenance.expire(name, SystemClock().now_us() // 1_000, 1)
            maintenance.orphans(name, orphan_before_ms(settings, SystemClock(), None), dry_run=False)

        compacted = mover.catalog.load_table(table.identifier)
        assert compacted.spec() == before.spec()
        assert compacted.sort_order() == before.sort_order()
        files = [task.file for task in compacted.scan().plan_files()]
        assert len({file.partition for file in files}) == len(files) == 2
        order = [
            (compacted.schema().find_column_name(one.source_id), "ascending") for one in before.sort_order().fields
        ]
        assert [name for name, _ in order] == ["service_name", "timestamp"]
        for file in files:
            assert file.sort_order_id == before.sort_order().order_id
            found = pq.read_table(urlsplit(file.file_path).path)
            assert len(pc.unique(pc.floor_temporal(found.column("timestamp"), unit="day"))) == 1
            assert found.select(["service_name", "timestamp"]).equals(
                found.sort_by(order).select(["service_name", "timestamp"])
            )

        mover.move(sent(range(9, 11)))
        (proved,) = prove(settings, REQUESTS, lambda _: lambda _: None)
        assert proved.problems == []
        assert proved.proven
        assert proved.tables == {"traces": 11 * 2 * 20, "traces__errors": 11}


@pytest.mark.long
@pytest.mark.parametrize("lake", ["sqlite", "postgres"])
def test_mover_and_maintenance_at_once_lose_and_double_nothing(
    lake: str, spark: SparkSession, lake_settings: Callable[[str], Settings]
) -> None:
    """Compaction, expiry of all but the present snapshot and removal of orphans, in a loop, while rows are moved."""
    settings, maintenance = maintained(lake_settings(lake), spark)
    mover = HandMover(settings)
    with frazil.open(settings) as storage:
        topic = storage.topic(TOPIC)
        publish(topic, 200)
        mover.move(topic, files=3)
        loop = _Loop(settings, maintenance, mover.name(topic))
        loop.start()
        reader, seen = topic.read_batches(0, follow=True), 0
        moves = 0
        while loop.is_alive():
            publish(topic, 100)
            mover.move(topic, files=2)
            moves += 1
            while (batch := reader.poll()) is not None:
                assert batch.column("_offset")[0].as_py() == seen
                seen += batch.num_rows
            loop.join(1.0)  # a mover that commits without pause wins every time
        reader.close()
        assert loop.failed is None
        assert moves > 1
        publish(topic, 10)
        end = mover.move(topic)
        assert [message.offset for message in topic.read()] == list(range(end))
        found = proof(settings, storage, topic)
        assert found.proven, found.problems
        assert found.in_table == end
    assert loop.compacted > 0, loop.refused
    assert loop.expired > 0, loop.refused


class _Loop(threading.Thread):
    """Rounds of maintenance; one that met the mover's commits too often is no failure: the next does its work."""

    def __init__(self, settings: Settings, maintenance: Maintenance, name: Any) -> None:
        super().__init__(name="maintenance", daemon=True)
        self._settings, self._maintenance, self._table = settings, maintenance, name
        self.failed: Exception | None = None
        self.compacted = self.expired = 0
        self.refused: list[str] = []

    def run(self) -> None:
        try:
            for _ in range(ROUNDS):
                self._round()
        except Exception as error:  # noqa: BLE001 - told to the test
            self.failed = error

    def _round(self) -> None:
        clock = SystemClock()
        try:
            self.compacted += self._maintenance.compact(self._table).files_before
            before_ms = clock.now_us() // 1_000
            self.expired += self._maintenance.expire(self._table, before_ms, 1).snapshots
            self._maintenance.orphans(self._table, orphan_before_ms(self._settings, clock, None), dry_run=False)
        except TryLater as error:
            self.refused.append(error.message)


@pytest.mark.long
def test_a_catalog_that_forbids_to_delete_is_told_and_compaction_works(
    spark: SparkSession, lake_settings: Callable[[str], Settings]
) -> None:
    settings, maintenance = maintained(lake_settings("rest"), spark)
    mover = HandMover(settings)
    with frazil.open(settings) as storage:
        topic = storage.topic(TOPIC)
        for _ in range(3):
            publish(topic, 100)
            mover.move(topic)
        name = mover.name(topic)
        assert maintenance.compact(name).files_before == 3
        with pytest.raises(TableRefused, match="catalog forbids to delete files"):
            maintenance.expire(name, SystemClock().now_us() // 1_000, 1)
        publish(topic, 10)
        assert mover.move(topic) == 310
        assert proof(settings, storage, topic).proven


@pytest.mark.long
def test_the_verbs_start_a_spark_of_their_own(tmp_path: Path) -> None:
    values = {"data": str(tmp_path / "data"), "maintenance": {"jars": str(part("iceberg")), "files_min": 2}}
    config = tmp_path / "frazil.yaml"
    config.write_text(json.dumps(values), encoding="utf-8")
    settings = Settings.model_validate(values)
    mover = HandMover(settings)
    with frazil.open(settings) as storage:
        topic = storage.topic(TOPIC)
        for _ in range(3):
            publish(topic, 100)
            mover.move(topic)
    (compacted,) = _table(config, "compact", TOPIC)
    assert (compacted["files_before"], compacted["files_after"]) == (3, 1)
    assert _table(config, "expire", "--keep", "1", "--older-than", "1ms", "--force")[0]["snapshots"] >= 4
    assert _table(config, "orphans", TOPIC, "--dry-run")[0]["files"] == []


@pytest.mark.long
def test_a_server_keeps_its_tables_when_it_is_asked_to(tmp_path: Path) -> None:
    rules = {"maintenance": {"jars": str(part("iceberg")), "files_min": 2}}
    settings = Settings.model_validate({"data": str(tmp_path / "data"), **rules})
    mover = HandMover(settings)
    with frazil.open(settings) as storage:
        for name in (TOPIC, "/shop/others"):
            topic = storage.topic(name)
            for _ in range(3):
                publish(topic, 100)
                mover.move(topic)
    server = Server(tmp_path, others=rules)
    server.start()
    try:
        here = tmp_path / "empty.yaml"
        here.write_text("{}")
        found = _table(here, "compact", "--server", server.http)
        assert [(one["files_before"], one["files_after"]) for one in found] == [(3, 1), (3, 1)]
        assert _table(here, "orphans", TOPIC, "--dry-run", "--server", server.http)[0]["files"] == []
        (kept,) = _table(here, "maintain", TOPIC, "--no-orphans", "--server", server.http)
        assert (kept["files_before"], kept["error"]) == (0, None)
        assert server.stop() == 0
        assert "Traceback" not in server.log()
    finally:
        server.kill()


def _table(config: Path, *words: str) -> Any:
    command = [sys.executable, "-m", "frazil", "table", *words, "--config", str(config), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment())
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout)
