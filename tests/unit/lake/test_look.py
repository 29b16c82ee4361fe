"""A look at the tables: one load for each, and nothing made."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError

import frazil
from frazil.core.rows import ENVELOPE
from frazil.lake.catalogs.opening import catalog_properties, open_catalog
from frazil.lake.commit.commit import Moved
from frazil.lake.tables import look as look_module
from frazil.lake.tables.look import LOOKS_MAX, NOTHING_YET, TableLook, look_at
from frazil.lake.tables.schema import TableName
from frazil.lake.tables.store import TableStore

NAME = TableName("default", "split")


def test_logs_of_one_table_cost_one_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = frazil.Settings(data=tmp_path)
    properties = catalog_properties(settings)
    store = TableStore(open_catalog(settings), properties.get("warehouse"), properties)
    store.ensure(NAME, ENVELOPE)
    moves = [Moved(f"log-{number}", 0, number + 1, (), 0, "", number) for number in range(3)]
    store.commit(NAME, moves, "move", lambda _: None)
    look, loads = TableLook(settings), []
    real: Any = type(look._catalog).load_table

    def counted(self: Catalog, identifier: tuple[str, str]) -> Any:
        loads.append(identifier)
        return real(self, identifier)

    monkeypatch.setattr(type(look._catalog), "load_table", counted)
    assert [look.at(NAME, f"log-{number}").end for number in range(3)] == [1, 2, 3]
    assert look.at(NAME, "another").end is None
    assert [look.at(TableName("default", "none"), f"log-{number}") for number in range(3)] == [NOTHING_YET] * 3
    assert loads == [NAME.identifier, ("default", "none")]


def test_a_look_makes_nothing(tmp_path: Path) -> None:
    assert TableLook(frazil.Settings(data=tmp_path)).at(NAME, "log") is NOTHING_YET
    assert list(tmp_path.iterdir()) == []


class _Hangs:
    """A catalog that takes every call and answers none until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def load_table(self, _: tuple[str, str]) -> Any:
        self.let_go.wait(30)
        raise OSError("it was let go")


def test_a_catalog_that_hangs_or_is_away_is_told_and_never_waited_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = frazil.Settings(data=tmp_path)
    assert look_at(settings, [(NAME, "id")]).state(NAME, "id") == NOTHING_YET, "nothing was ever moved"
    open_catalog(settings)
    hanging = _Hangs()
    monkeypatch.setattr(look_module, "open_catalog", lambda _: hanging)
    try:
        for _ in range(LOOKS_MAX):
            found = look_at(settings, [(NAME, "id")], stall_seconds_max=0.01)
            assert found.state(NAME, "id") is None
            assert "no answer within" in str(found.reason(NAME))
        assert "earlier questions have no answer" in str(look_at(settings, [(NAME, "id")]).error)
    finally:
        hanging.let_go.set()

    def refuse(_: frazil.Settings) -> Any:
        raise frazil.LakeUnavailable("catalog.uri", "refused", "start the catalog")

    monkeypatch.setattr(look_module, "open_catalog", refuse)
    found = look_at(settings, [(NAME, "id")])
    while "earlier questions" in str(found.error):  # the threads that hung are ending
        found = look_at(settings, [(NAME, "id")])
    assert found.error == "catalog.uri: refused; start the catalog"


def test_a_table_that_fails_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = frazil.Settings(data=tmp_path)
    open_catalog(settings)
    bad = TableName("default", "bad")

    def load(_: Any, identifier: tuple[str, str]) -> Any:
        if identifier == bad.identifier:
            raise OSError("its metadata is gone")
        raise NoSuchTableError

    monkeypatch.setattr(SqlCatalog, "load_table", load)
    found = look_at(settings, [(bad, "id"), (NAME, "id")])
    assert found.state(NAME, "id") == NOTHING_YET
    assert found.state(bad, "id") is None
    assert "its metadata is gone" in str(found.reason(bad))
