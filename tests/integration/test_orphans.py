"""Orphans by Iceberg's own list, on an S3 server: of this table alone, and never what a mover is about to commit."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import frazil
from frazil.core.clock import SystemClock
from frazil.core.settings import make_settings
from frazil.lake.catalogs.opening import open_catalog
from frazil.lake.catalogs.spark import spark_options
from frazil.lake.tables.schema import TableName
from frazil.pipeline.maintenance.procedures import Maintenance, orphan_before_ms
from parts.every_reader import EveryReader
from parts.in_process import MoverHere
from parts.meddling import Meddling
from parts.s3 import S3

pytestmark = pytest.mark.timeout(240)

NAMES = ("orders", "orders-2", "orders2")
DAYS_S = 4 * 86_400


def make_old(files: Path) -> None:
    """Every object of the bucket, as the store dates it."""
    for path in files.rglob("*"):
        os.utime(path, (path.stat().st_mtime - DAYS_S,) * 2)


def test_a_stopped_mover_and_tables_with_like_names_lose_no_file(tmp_path: Path, s3: S3, spark: SparkSession) -> None:
    bucket = s3.make_bucket(f"orphans-{uuid.uuid4().hex[:8]}")
    catalog = {"name": f"c{uuid.uuid4().hex}"}
    settings = make_settings({"data": tmp_path / "data", "catalog": catalog, "object_store": s3.settings(bucket)})
    for option, value in spark_options(settings).items():
        spark.conf.set(option, value)
    maintenance, files = Maintenance(settings, spark), s3.folder / bucket
    before_ms = orphan_before_ms(settings, SystemClock(), None)
    removed: list[str] = []

    def stopped_for_days(number: int, commit: Callable[[], Any]) -> Any:
        if number == 1:
            make_old(files)
            removed.extend(maintenance.orphans(TableName("shop", "orders"), before_ms, dry_run=False).files)
        return commit()

    with frazil.open(settings) as storage:
        topics = [storage.topic(f"/shop/{name}") for name in NAMES]
        for topic in topics:
            topic.publish_many([b"first"] * 10)
        MoverHere(settings, storage).tick()
        for name in NAMES:
            (files / "shop" / name / "data" / "stray.parquet").write_bytes(b"of a task that died")
        topics[0].publish_many([b"second"] * 10)
        mover = MoverHere(settings, storage, catalog=Meddling(open_catalog(settings), stopped_for_days))  # type: ignore[arg-type]
        mover.tick()
        mover.tick()
        assert any(path.endswith("/shop/orders/data/stray.parquet") for path in removed)
        assert len([path for path in removed if "/data/" in path]) == 2, "the stray one, and that of the stopped move"
        assert all(path.startswith(f"s3://{bucket}/shop/orders/") for path in removed)
        assert [(files / "shop" / name / "data" / "stray.parquet").exists() for name in NAMES] == [False, True, True]
        for topic, end in zip(topics, (20, 10, 10), strict=True):
            every = EveryReader(settings, topic)
            assert [offset for offset, _ in every.rows("read_only")] == list(range(end))
            assert every.proof().proven
