"""A registry on a store of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from frazil.meta.sqlite import SqliteStore
from frazil.registry.registry import SchemaRegistry
from frazil.registry.topics import TopicSchemas
from frazil.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "meta.db")
    yield store
    store.close()


@pytest.fixture
def registry(store: SqliteStore, clock: FakeClock) -> SchemaRegistry:
    return SchemaRegistry(store, clock)


@pytest.fixture
def topics(store: SqliteStore, registry: SchemaRegistry, clock: FakeClock) -> TopicSchemas:
    return TopicSchemas(store, registry, clock)
