"""Rows deleted and updated by Spark SQL with merge-on-read: everyone who reads a topic says the same.

What is gone is refused until a person accepts it, and then passed over by all. What was changed is shown as it is now,
and `verify` tells it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import frazil
from frazil.core.settings import RetentionSettings, make_settings
from frazil.lake.catalogs.opening import open_catalog
from frazil.lake.tables.accept import accept
from parts.every_reader import FACES, EveryReader, Rows
from parts.in_process import MoverHere
from parts.moving import Floor, open_guarded
from parts.processes import pause
from parts.spark_iceberg import iceberg_options

pytestmark = pytest.mark.timeout(300)

TOPIC = "/shop/orders"
REFUSED = (frazil.TableDamaged, frazil.RowsMissing)
MERGE_ON_READ = ", ".join(f"'write.{what}.mode' = 'merge-on-read'" for what in ("delete", "update", "merge"))


class World:
    """A topic whose first thousand rows are in the table alone, and another engine on the same table."""

    def __init__(self, folder: Path, session: SparkSession) -> None:
        catalog = {"name": f"c{uuid.uuid4().hex}"}
        wal = {"max_file_size": 64 * 1024, "max_file_age_ms": 1}
        sections: dict[str, Any] = {"data": str(folder / "data"), "catalog": catalog, "wal": wal}
        config = folder / "frazil.yaml"
        config.write_text(json.dumps(sections))
        self.settings = make_settings(sections)
        self.session = session
        for name, value in iceberg_options(self.settings).items():
            session.conf.set(name, value)
        self.floor = Floor()
        self.storage = open_guarded(self.settings, self.floor)
        self.topic = self.storage.topic(TOPIC)
        self.expected: dict[int, bytes] = {}
        for _ in range(4):
            self.publish(250)
            self.move()
        self._empty_the_log()
        self.storage.close()  # else the replay cache would still have the rows
        self.storage = frazil.open(self.settings)
        self.topic = self.storage.topic(TOPIC)
        self.every = EveryReader(self.settings, self.topic, config)
        self.publish(20)

    def publish(self, count: int) -> None:
        end = self.topic.stats().end
        rows = {offset: f"row {offset}".encode() for offset in range(end, end + count)}
        self.topic.publish_many(list(rows.values()))
        self.expected |= rows

    def move(self) -> None:
        assert MoverHere(self.settings, self.storage).errors() == {TOPIC: None}

    def _empty_the_log(self) -> None:
        end = self.topic.stats().end
        self.floor.ends[self.topic.log.log_id] = end
        self.storage.set_retention(TOPIC, RetentionSettings(age_ms=1))
        for _ in range(500):
            self.storage.maintain()
            if self.topic.log.first_offset == end:
                self.storage.set_retention(TOPIC, None)
                return
            pause(0.02)
        raise AssertionError("retention has not emptied the log")

    def sql(self, text: str) -> None:
        """`{table}` is the table, `{call}` begins a procedure and `{name}` is how that is told the table."""
        name = self.settings.catalog.name
        filled = text.format(table=f"{name}.shop.orders", call=f"CALL {name}.system.", name="table => 'shop.orders'")
        self.session.sql(filled).collect()

    def accept(self) -> None:
        catalog = open_catalog(self.settings)
        log = self.topic.log
        accept(catalog, self.every.name, log.log_id, log.first_offset, str(uuid.uuid4()))

    def refuse_from(self, offset: int, start: int = 0) -> None:
        """Every reader that comes to a row that is gone is refused there. SQL refuses all at the first of them."""
        for face in FACES if not start else FACES[:-1]:
            with pytest.raises(REFUSED) as refused:
                self.every.rows(face, start)
            assert refused.value.fields.get("offset", refused.value.fields.get("start")) == offset, face
        assert not self.every.proof().proven

    def read_alike(self, changed: int | None = None) -> None:
        rows: Rows = sorted(self.expected.items())
        in_table = rows if self.topic.stats().end == self._in_table() else [row for row in rows if row[0] < 1_000]
        for face in FACES:
            assert self.every.rows(face) == (in_table if face == "read_only" else rows), face
        proof = self.every.proof()
        kinds = {problem.kind for problem in proof.problems}
        assert (proof.proven, kinds) == ((True, set()) if changed is None else (False, {"changed"}))
        if changed is not None:
            assert any(problem.range.start <= changed < problem.range.end for problem in proof.problems)

    def _in_table(self) -> int:
        with frazil.open_read_only(self.settings) as node:
            return node.topic(TOPIC).stats().end


@pytest.fixture
def world(tmp_path: Path, spark: SparkSession) -> Iterator[World]:
    found = World(tmp_path, spark)
    yield found
    found.storage.close()


def test_deleted_and_updated_rows_are_the_same_to_everyone(world: World) -> None:
    world.read_alike()
    world.sql(f"ALTER TABLE {{table}} SET TBLPROPERTIES ({MERGE_ON_READ})")
    world.sql("DELETE FROM {table} WHERE _offset IN (5, 8) OR _offset BETWEEN 240 AND 260")
    world.refuse_from(5)
    world.refuse_from(240, 100)
    world.accept()
    for offset in (5, 8, *range(240, 261)):
        del world.expected[offset]
    world.read_alike()
    world.move()
    world.read_alike()
    for offset in (10, 500):  # beside the gap that was accepted, and in a commit of which all is there
        world.sql(f"UPDATE {{table}} SET _payload = CAST('changed' AS BINARY) WHERE _offset IN ({offset}, 251)")
        world.expected[offset] = b"changed"
        world.read_alike(offset)
    world.sql(
        "MERGE INTO {table} AS t USING (SELECT explode(array(700, 701)) AS at) AS s ON t._offset = s.at"
        " WHEN MATCHED AND s.at = 700 THEN DELETE WHEN MATCHED THEN UPDATE SET _payload = CAST('merged' AS BINARY)"
    )
    world.refuse_from(700)
    world.accept()
    del world.expected[700]
    world.expected[701] = b"merged"
    world.sql("{call}rewrite_data_files({name}, options => map('rewrite-all', 'true', 'delete-file-threshold', '1'))")
    rows = sorted(world.expected.items())
    for face in FACES:
        assert world.every.rows(face) == rows, face


def test_a_table_with_deletion_vectors_is_refused_by_everyone(world: World) -> None:
    world.sql(f"ALTER TABLE {{table}} SET TBLPROPERTIES ('format-version' = '3', {MERGE_ON_READ})")
    world.sql("DELETE FROM {table} WHERE _offset = 5")
    for face in FACES:
        with pytest.raises(frazil.TableRefused, match="upgraded to Iceberg format 3"):
            world.every.rows(face)
    assert not world.every.proof().proven
    (error,) = MoverHere(world.settings, world.storage).errors().values()
    assert "upgraded to Iceberg format 3" in str(error)
