"""Fixtures over the parts: servers live as long as the test session, and start when first asked for."""

from __future__ import annotations

import gc
import os
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from frazil.core.settings import Settings, make_settings
from frazil.pipeline.spark.session import SparkPlace, open_session
from frazil.spark import register
from parts.glue import glue_stand_in
from parts.nessie import WAREHOUSE, Nessie, nessie
from parts.postgres import Postgres, postgres
from parts.s3 import S3, s3_server
from parts.spark import SparkCluster, spark_cluster, spark_connect
from parts.spark_iceberg import spark_server

LAKES = ("sqlite", "postgres", "rest", "glue", "memory")
WHOLE_LAKES = ("sqlite", "rest")
"""The catalogs that every test runs on. The others have some quick tests, and the rest of them with the long ones."""


def lakes_of(*kinds: str, quick: tuple[str, ...] = WHOLE_LAKES) -> list[Any]:
    """Parameters of a test: on catalogs that are not `quick` it is a long one."""
    return [kind if kind in quick else pytest.param(kind, marks=pytest.mark.long) for kind in kinds]


@pytest.fixture(scope="session")
def parts_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parts")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    with postgres() as server:
        yield server


@pytest.fixture(scope="session")
def s3(parts_folder: Path) -> Iterator[S3]:
    with s3_server(parts_folder / "s3") as server:
        yield server


@pytest.fixture(scope="session")
def rest_catalog(s3: S3, parts_folder: Path) -> Iterator[Nessie]:
    with nessie(s3, parts_folder / "nessie") as server:
        yield server


@pytest.fixture(scope="session")
def glue(parts_folder: Path) -> Iterator[str]:
    with glue_stand_in(parts_folder / "glue") as address:
        yield address


@pytest.fixture(scope="session")
def spark_address(parts_folder: Path) -> Iterator[str]:
    with spark_server(parts_folder / "spark") as address:
        yield address


@pytest.fixture(scope="session")
def connected(spark_address: str) -> Iterator[tuple[SparkSession, dict[str, str]]]:
    """A session of Spark Connect, and what it told the environment: nothing that other tests may inherit."""
    before = dict(os.environ)
    session = SparkSession.builder.remote(spark_address).create()
    added = {name: value for name, value in os.environ.items() if name not in before}
    for name in added:
        del os.environ[name]
    yield session, added
    session.stop()


@pytest.fixture
def spark(connected: tuple[SparkSession, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    session, environment = connected
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return session


@pytest.fixture(scope="session")
def spark_hosts(parts_folder: Path) -> Iterator[SparkCluster]:
    with spark_cluster(parts_folder / "cluster") as server:
        yield server


@pytest.fixture
def one_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Movers on the cluster take one core of it: a second JVM takes seconds to start, and proves no more."""
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", f"{os.environ['SPARK_SUBMIT_OPTS']} -Dspark.cores.max=1")


@pytest.fixture(scope="session")
def connect(parts_folder: Path) -> Iterator[str]:
    with spark_connect(parts_folder / "connect") as address:
        yield address


@pytest.fixture(scope="session")
def embedded_spark() -> Iterator[SparkSession]:
    session = open_session(SparkPlace("local[2]"))
    register(session)
    yield session
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # see `session`
        session.stop()
        gc.collect()


@pytest.fixture(scope="module")
def session(embedded_spark: SparkSession) -> Iterator[SparkSession]:
    """The embedded Spark of this worker, which also reads topics.

    PySpark leaves it to the garbage collector to close the sockets by which it fetched results. What a module has left
    is collected at its end: no test of another module shall warn of it.
    """
    yield embedded_spark
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def lake_settings(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Settings]:
    """Settings of a lake by its name; the servers that it needs are started, and no others."""

    def make(lake: str) -> Settings:
        sections: dict[str, Any] = {"data": tmp_path / "data"}
        if lake == "memory":
            sections["catalog"] = {"type": "memory"}
        elif lake == "postgres":
            server = request.getfixturevalue("postgres_server")
            sections["catalog"] = {"uri": server.uri, "name": f"c{uuid.uuid4().hex}"}
        elif lake == "rest":
            server = request.getfixturevalue("rest_catalog")
            sections["catalog"] = {"type": "rest", "uri": server.uri}
            sections["object_store"] = request.getfixturevalue("s3").settings(WAREHOUSE)
        elif lake == "glue":
            store = request.getfixturevalue("s3")
            sections["catalog"] = {"type": "glue", "uri": request.getfixturevalue("glue")}
            sections["object_store"] = store.settings(store.make_bucket("glue-lake"))
        else:
            assert lake == "sqlite"
        return make_settings(sections)

    return make
