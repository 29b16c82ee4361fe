"""The metadata store is put back from an older copy: no schema id and no version ever stands for two schemas."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from schemas import schema

from frazil.core.errors import SchemaNotFound
from frazil.meta.sqlite import SqliteStore
from frazil.registry.issued_numbers import IssuedNumbers
from frazil.registry.registry import SchemaRegistry
from frazil.testing import FakeClock

ONE, TWO, THREE, FOUR = (schema(**{f"f{index}": "string" for index in range(count)}) for count in (1, 2, 3, 4))


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[SchemaRegistry]:
    """As a server opens it: the metadata is one file here, and can be elsewhere; the numbers are beside the data."""
    with (
        contextlib.closing(SqliteStore(folder / "meta.db")) as store,
        contextlib.closing(SqliteStore(folder / "given.db")) as local,
    ):
        registry = SchemaRegistry(store, FakeClock(), given=IssuedNumbers(local))
        registry.start()
        yield registry


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Of a store with one subject of one version; two versions and a subject came after it."""
    with opened(tmp_path) as registry:
        registry.register("orders", "json", ONE)
    shutil.copy(tmp_path / "meta.db", tmp_path / "copy.db")
    with opened(tmp_path) as registry:
        assert registry.register("orders", "json", TWO).version == 2
        assert registry.register("orders", "json", THREE).version == 3
        assert registry.register("payments", "json", ONE).schema_id == 2
    (tmp_path / "meta.db").unlink()
    shutil.copy(tmp_path / "copy.db", tmp_path / "meta.db")
    return tmp_path


def test_a_version_that_was_lost_gets_its_number_again_and_others_get_new_ones(copy: Path) -> None:
    with opened(copy) as registry:
        with pytest.raises(SchemaNotFound):
            registry.version("orders", 2)
        assert registry.register("orders", "json", TWO).version == 2
        assert registry.register("orders", "json", FOUR).version == 4, "3 stands for another schema in old messages"
        assert registry.register("orders", "json", THREE).version == 5
        versions = [(each.version, each.fingerprint) for each in registry.versions("orders")]
        assert [number for number, _ in versions] == [1, 2, 4, 5]
        assert registry.latest("orders").info.version == 5


def test_an_id_that_was_lost_is_given_to_its_own_subject_alone(copy: Path) -> None:
    with opened(copy) as registry:
        with pytest.raises(SchemaNotFound):
            registry.get(2)
        assert registry.register("invoices", "json", ONE).schema_id == 3
        assert registry.register("payments", "json", TWO).schema_id == 2
        assert registry.get(2).subject == "payments"
        assert registry.get(2).info.version == 2, "version 1 of it was another schema"
        assert registry.get(3).subject == "invoices"


def test_numbers_of_before_they_were_kept_are_learnt_at_the_start(tmp_path: Path) -> None:
    with contextlib.closing(SqliteStore(tmp_path / "meta.db")) as store:
        old = SchemaRegistry(store, FakeClock())
        old.register("orders", "json", ONE)
        old.register("orders", "json", TWO)
    with opened(tmp_path):
        pass
    (tmp_path / "meta.db").unlink()
    with opened(tmp_path) as registry:
        assert registry.register("payments", "json", ONE).schema_id == 2
        assert registry.register("orders", "json", THREE).schema_id == 1
        assert registry.latest("orders").info.version == 3


def test_without_a_restore_numbers_have_no_gaps(tmp_path: Path) -> None:
    with opened(tmp_path) as registry:
        for number, definition in enumerate((ONE, TWO, THREE, FOUR), 1):
            assert registry.register("orders", "json", definition).version == number
            assert registry.register(f"subject {number}", "json", definition).schema_id == number + 1
    with opened(tmp_path) as registry:
        registry.delete_version("orders", 4)
        assert registry.register("orders", "json", FOUR).version == 5, "the number of a deleted one is not used again"
