"""A look at the tables: one load for each, and nothing made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog

import frazil
from frazil.core.rows import ENVELOPE
from frazil.lake.catalog import catalog_properties, open_catalog
from frazil.lake.commit import Moved
from frazil.lake.look import NOTHING_YET, TableLook
from frazil.lake.store import TableStore
from frazil.lake.tables import TableName

NAME = TableName("default", "split")


def test_logs_of_one_table_cost_one_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = frazil.Settings(data=tmp_path)
    properties = catalog_properties(settings)
    store = TableStore(open_catalog(settings), properties.get("warehouse"), properties)
    store.ensure(NAME, ENVELOPE)
    moves = [Moved(f"log-{number}", 0, number + 1, (), 0, "") for number in range(3)]
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
