"""Tables on stores that are not S3: Azure and Google Cloud Storage, each by a stand-in, and the memory of a process."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import frazil
from frazil.core.errors import InvalidSettings, LakeUnavailable
from frazil.core.rows import stored_schema
from frazil.core.settings import Settings, make_settings
from frazil.iceberg import IcebergStorage
from frazil.lake.catalogs.check import check_lake, probe_lake
from frazil.lake.commit.commit import Moved
from frazil.lake.files import file_io
from frazil.lake.files.writer import DataFile, TableFiles, write_data_files
from frazil.lake.read.history import TableHistories, TableHistory
from frazil.lake.tables.schema import table_rows
from frazil.node.query.session import SqlSession
from frazil.node.tiers.logs import FileView
from frazil.pipeline.move.runner import open_runner
from frazil.serve.process import serve_until_stopped
from parts.azurite import ACCOUNT, KEY, Azurite, azurite, sas_token
from parts.gcs import TOKEN, Gcs, gcs_server
from parts.moving import HandMover
from parts.processes import PARTS, free_port

NEEDS_AZURITE = pytest.mark.skipif(
    not (PARTS / "azurite" / "version").exists(), reason="Azurite comes from npm, and `make parts` found none"
)
AZURE_BY_KEY = pytest.param("azure by key", marks=NEEDS_AZURITE)
CLOUDS = (AZURE_BY_KEY, pytest.param("azure by token", marks=NEEDS_AZURITE), "gcs by token")
WRONG = {
    "azure by key": ({"secret_access_key": "d3Jvbmctczc="}, "object_store.access_key_id"),
    "azure by token": ({"session_token": sas_token("2001-01-01T00:00:00Z")}, "object_store.session_token"),
    "gcs by token": ({"session_token": "wrong-s3cret"}, "object_store.session_token"),
}


@pytest.fixture(scope="session")
def azure(parts_folder: Path) -> Iterator[Azurite]:
    with azurite(parts_folder / "azurite") as server:
        yield server


@pytest.fixture(scope="session")
def gcs(parts_folder: Path) -> Iterator[Gcs]:
    with gcs_server(parts_folder / "gcs") as server:
        yield server


@pytest.fixture
def settings_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Settings]:
    """Settings on a bucket of its own, or on the one that is given; only the server that is needed is started."""

    def make(kind: str, bucket: str | None = None, **changed: Any) -> Settings:
        name = f"b{uuid.uuid4().hex[:12]}"
        if kind == "memory":
            return make_settings({"data": tmp_path, "catalog": {"type": "memory"}, "object_store": {"type": "memory"}})
        if kind == "gcs by token":
            gcs: Gcs = request.getfixturevalue("gcs")
            store = gcs.settings(bucket or gcs.make_bucket(name), **changed)
        else:
            azure: Azurite = request.getfixturevalue("azure")
            token = {"session_token": sas_token()} if kind == "azure by token" else {}
            store = azure.settings(bucket or azure.make_container(name), **{**token, **changed})
        return make_settings({"data": tmp_path, "object_store": store})

    return make


def payloads(rows: pa.Table) -> list[bytes]:
    return [bytes(each) for each in rows.sort_by("_offset").column("_payload").to_pylist()]


@pytest.mark.parametrize("kind", [*CLOUDS, "memory"])
def test_rows_are_moved_and_read_back(kind: str, settings_of: Callable[..., Settings]) -> None:
    settings = settings_of(kind, prefix="a/lake") if kind != "memory" else settings_of(kind)
    check_lake(settings)
    probe_lake(settings, 30)
    sent = [f"tea {number}".encode() for number in range(300)]
    with frazil.open(settings) as storage:
        topic, mover = storage.topic("/shop/orders"), HandMover(settings)
        topic.publish_many(sent)
        assert mover.move(topic, end=200, files=3) == 200
        assert mover.move(topic) == 300
        assert payloads(mover.table(topic).scan().to_arrow()) == sent
        if kind == "memory":
            history: Any = TableHistory(mover.catalog, topic.log.name, topic.log.log_id, settings.reader)
        else:
            history = TableHistories(settings).of(topic.log.name, topic.log.log_id)
        batches = list(history.read(150, 250, stored_schema(topic.schema)))
        assert [bytes(each) for batch in batches for each in batch.column("_payload").to_pylist()] == sent[150:250]


@pytest.mark.parametrize("kind", CLOUDS)
def test_sql_reads_the_table(kind: str, settings_of: Callable[..., Settings]) -> None:
    settings = settings_of(kind)
    with frazil.open(settings) as storage:
        topic, mover = storage.topic("/shop/orders"), HandMover(settings)
        topic.publish_many([b"tea"] * 50)
        mover.move(topic)
        topic.publish_many([b"cake"] * 5)
        prices = pa.schema([("unit-price", pa.int64()), ("UNIT", pa.string())])
        typed = storage.topic("/shop/prices", schema=prices)
        typed.publish_many(pa.record_batch([[1, 2], ["a", "b"]], schema=prices))
        mover.move(typed)
        with mover.table(typed).update_schema() as update:
            update.rename_column("UNIT", "unit")
    for query, expected in (
        ("select count(*), max(_offset) from shop.orders where _payload is not null", (55, 54)),
        ('select sum("unit-price")::int, max(unit) from shop.prices', (3, "b")),
    ):
        with SqlSession(settings, FileView(settings)) as session:
            answer = session.run(query)
            assert [tuple(row.values()) for batch in answer.batches for row in batch.to_pylist()] == [expected]


def _write_as_a_task(files: TableFiles, rows: pa.Table, answers: Any) -> None:
    answers.put(write_data_files(files.metadata, files.io_properties, rows, uuid.uuid4()))


@pytest.mark.parametrize("kind", [AZURE_BY_KEY])
def test_a_task_in_another_process_writes_to_the_same_store(kind: str, settings_of: Callable[..., Settings]) -> None:
    """As Spark's tasks do: they get what a table's files are written with, and nothing else."""
    settings = settings_of(kind)
    with frazil.open(settings) as storage:
        topic, mover = storage.topic("/shop/orders"), HandMover(settings)
        topic.publish_many([b"tea"] * 10)
        assert mover.end(topic) == 0
        rows = pa.Table.from_batches([table_rows(batch, 0) for batch in topic.read_batches(0, end=10)])
        spawn = multiprocessing.get_context("spawn")
        answers = spawn.Queue()
        task = spawn.Process(target=_write_as_a_task, args=(mover.tables.files_of(mover.name(topic)), rows, answers))
        task.start()
        written: list[DataFile] = answers.get(timeout=60)
        task.join(60)
        moved = Moved(topic.log.log_id, 0, 10, tuple(written), 10, "00000000")
        mover.tables.commit(mover.name(topic), [moved], str(uuid.uuid4()), lambda _: None)
        assert payloads(mover.table(topic).scan().to_arrow()) == [b"tea"] * 10


def refused(settings: Settings) -> LakeUnavailable:
    with pytest.raises(LakeUnavailable) as error:
        check_lake(settings)
    for secret in (KEY, TOKEN, "wrong-s3cret", "d3Jvbmctczc="):
        assert secret not in error.value.message
    return error.value


@pytest.mark.parametrize("kind", CLOUDS)
def test_wrong_credentials_are_named(kind: str, settings_of: Callable[..., Settings]) -> None:
    changed, setting = WRONG[kind]
    error = refused(settings_of(kind, **changed))
    assert error.setting == setting
    assert "refuses the credentials" in error.message


@pytest.mark.parametrize("kind", [AZURE_BY_KEY, "gcs by token"])
def test_a_bucket_that_is_not_there_is_named(kind: str, settings_of: Callable[..., Settings]) -> None:
    error = refused(settings_of(kind, "no-such-bucket"))
    assert error.setting == "object_store.bucket"
    assert "there is no bucket no-such-bucket" in error.message


@NEEDS_AZURITE
def test_locations_of_azure_are_those_of_other_engines(settings_of: Callable[..., Settings]) -> None:
    settings = settings_of("azure by key", prefix="/lake/")
    with frazil.open(settings) as storage:
        topic, mover = storage.topic("/shop/orders"), HandMover(settings)
        mover.end(topic)
        place = f"abfss://{settings.object_store.bucket}@{ACCOUNT}.dfs.core.windows.net/lake/shop/orders"
        assert mover.table(topic).location() == place


@pytest.mark.parametrize("kind", [AZURE_BY_KEY, "gcs by token"])
def test_a_store_that_is_not_there_is_named_in_time(
    kind: str, settings_of: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_io, "GCS_RETRY_S_MAX", 1)
    error = refused(settings_of(kind, endpoint=f"http://127.0.0.1:{free_port()}"))
    assert error.setting == "object_store.endpoint"


def test_files_in_memory_are_for_a_catalog_in_memory(tmp_path: Path) -> None:
    settings = make_settings({"data": tmp_path, "object_store": {"type": "memory"}})
    error = refused(settings)
    assert error.setting == "object_store.type"
    assert not (tmp_path / "catalog.db").exists()


def test_who_moves_with_spark_refuses_files_in_memory(settings_of: Callable[..., Settings]) -> None:
    settings, said = settings_of("memory"), r"object_store\.type: memory is that of one process"
    with pytest.raises(InvalidSettings, match=said), open_runner(settings, threading.Event(), once=True):
        pass
    with pytest.raises(InvalidSettings, match=said):
        serve_until_stopped(settings, mover=["never-started"])
    with pytest.raises(InvalidSettings, match=said):
        asyncio.run(IcebergStorage.create(settings))
