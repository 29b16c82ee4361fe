"""The places where small facts are kept, for the tests of every store of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from metas import KINDS, Place

from frazil.core.settings.metadata import MetadataSettings, MetadataType
from frazil.meta.store import MetaStore
from parts.etcd import Etcd, etcd_server


@pytest.fixture(scope="session")
def etcd(parts_folder: Path) -> Iterator[Etcd]:
    with etcd_server(parts_folder / "etcd") as server:
        yield server


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        return Place(tmp_path, MetadataSettings())
    server: Etcd = request.getfixturevalue("etcd")
    prefix = f"/test-{uuid.uuid4().hex[:12]}"
    return Place(tmp_path, MetadataSettings(type=MetadataType.ETCD, endpoints=(server.endpoint,), prefix=prefix))


@pytest.fixture
def store(place: Place) -> Iterator[MetaStore]:
    store = place.open()
    yield store
    store.close()


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[Etcd]:
    with etcd_server(tmp_path / "etcd") as server:
        yield server
