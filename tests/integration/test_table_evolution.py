"""A table whose writers add columns and widen types, read by everyone who can read it, before and after it is moved."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

import frazil
from frazil.core.settings import FlightSettings, Settings
from frazil.doors.flight.door import flight_door
from frazil.node.query.session import SqlSession
from frazil.node.tiers.logs import FileView
from frazil.node.verify.proofs import prove
from frazil.pipeline.source.options import parse_options
from frazil.pipeline.source.source import BatchSourceReader
from parts.moving import HandMover
from parts.tenants import FlightTenant, batch

READINGS, TOPIC = ("eu", "readings"), "/acme.eu/readings"
NAMES = ("sensor", "celsius", "station")
_KINDS = (StringType(), LongType(), StringType())
_SPARK = StructType([StructField(name, kind) for name, kind in zip(NAMES, _KINDS, strict=True)])

Rows = list[tuple[Any, ...]]
OLD: Rows = [("a", 1, None), ("b", 2, None)]
NEW: Rows = [("c", 2**40, "north"), (None, None, "south")]


def as_rows(batches: Any) -> Rows:
    found = (row for one in batches for row in one.to_pylist())
    return [tuple(row.get(name) for name in NAMES) for row in found]


def embedded(storage: frazil.Storage) -> Rows:
    return as_rows(storage.topic(TOPIC, create=False).read_batches())


def read_only(storage: frazil.Storage) -> Rows:
    with frazil.open_read_only(storage.settings) as node:
        return as_rows(node.topic(TOPIC).read_batches())


def by_sql(storage: frazil.Storage) -> Rows:
    query = f'select {", ".join(NAMES)} from "acme.eu"."readings" order by _offset'
    with SqlSession(storage.settings, FileView(storage.settings)) as session:
        return as_rows(list(session.run(query).batches))


def spark_source(storage: frazil.Storage) -> Rows:
    reader = BatchSourceReader(parse_options({"subscribe": TOPIC, "data": str(storage.settings.data)}), _SPARK)
    return as_rows([one for task in reader.partitions() for one in reader.read(task)])


def in_the_table(storage: frazil.Storage) -> Rows:
    table = HandMover(storage.settings).table(storage.topic(TOPIC, create=False)).scan().to_arrow()
    return as_rows(table.sort_by("_offset").to_batches())


READERS: dict[str, Callable[[frazil.Storage], Rows]] = {
    "embedded": embedded,
    "sql": by_sql,
    "spark": spark_source,
}


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[frazil.Storage]:
    with frazil.open(Settings.of_folder(tmp_path / "data")) as storage:
        yield storage


@pytest.fixture
def client(storage: frazil.Storage) -> Iterator[FlightTenant]:
    """Without security: the header alone names the tenant."""
    with flight_door(storage, FlightSettings(port=0)) as door, FlightTenant(door.address, tenant="acme") as client:
        yield client


def put_old(client: FlightTenant) -> None:
    client.put(READINGS, batch(sensor=["a", "b"], celsius=pa.array([1, 2], pa.int32())))


def put_new(client: FlightTenant) -> None:
    client.put(READINGS, batch(celsius=[2**40], sensor=["c"], station=["north"]), batch_of_station("south"))


def batch_of_station(name: str) -> pa.RecordBatch:
    return batch(celsius=pa.array([None], pa.int64()), sensor=pa.array([None], pa.string()), station=[name])


@pytest.mark.parametrize("moved_before", [True, False], ids=["old rows moved", "nothing moved"])
def test_every_reader_sees_old_rows_with_nulls(
    storage: frazil.Storage, client: FlightTenant, *, moved_before: bool
) -> None:
    mover = HandMover(storage.settings)
    put_old(client)
    topic = storage.topic(TOPIC, create=False)
    if moved_before:
        mover.move(topic)
        assert mover.table(topic).schema().column_names[-2:] == ["sensor", "celsius"]
    put_new(client)
    for name, read in READERS.items():
        assert read(storage) == OLD + NEW, f"{name} while rows wait in the log"
    assert [tuple(row.values()) for row in client.rows(*READINGS)] == OLD + NEW
    mover.move(topic)
    for name, read in {**READERS, "table": in_the_table, "read only": read_only}.items():
        assert read(storage) == OLD + NEW, f"{name} when all is moved"
    assert [tuple(row.values()) for row in client.rows(*READINGS)] == OLD + NEW
    (proof,) = prove(storage.settings, TOPIC, lambda _: lambda _: None)
    assert (proof.proven, proof.in_table) == (True, 4)
    put_old(client)
    mover.move(topic)
    assert in_the_table(storage) == OLD + NEW + OLD, "a writer that knows the first columns alone goes on"


def test_a_crash_between_the_new_column_and_its_rows_costs_nothing(
    storage: frazil.Storage, client: FlightTenant, tmp_path: Path
) -> None:
    put_old(client)
    own = storage.topic(TOPIC, create=False).schema
    assert own is not None
    wider = pa.schema([own.field(0), pa.field("celsius", pa.int64()), pa.field("station", pa.string())])
    storage.change_schema(TOPIC, wider)
    shutil.copytree(tmp_path / "data", tmp_path / "after")  # what a killed process leaves
    with (
        frazil.open(Settings.of_folder(tmp_path / "after")) as after,
        flight_door(after, FlightSettings(port=0)) as door,
    ):
        with FlightTenant(door.address, tenant="acme") as again:
            assert embedded(after) == OLD
            put_old(again)
            put_new(again)
        HandMover(after.settings).move(after.topic(TOPIC, create=False))
        assert in_the_table(after) == OLD + OLD + NEW


def test_a_flush_waits_for_the_table(storage: frazil.Storage, client: FlightTenant) -> None:
    put_old(client)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.act, "flush", dataset="eu", table="readings", timeout_ms=60_000)
        assert not waiting.done()
        HandMover(storage.settings).move(storage.topic(TOPIC, create=False))
        assert waiting.result() == {"offset": 2, "table_end": 2}
    assert client.act("flush", topic=TOPIC, offset=1, timeout_ms=0) == {"offset": 1, "table_end": 2}
    put_new(client)
    with pytest.raises(pa.flight.FlightUnavailableError, match="not those below 4; ask again"):
        client.act("flush", dataset="eu", table="readings", timeout_ms=0)
