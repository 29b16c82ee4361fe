"""Accepting a table that lacks rows: on a person's word, and visible in its history."""

from __future__ import annotations

from pathlib import Path

import pytest

import frazil
from frazil.core.errors import TableRolledBack
from frazil.core.rows import ENVELOPE
from frazil.lake.catalogs.opening import catalog_properties, open_catalog
from frazil.lake.commit.commit import Moved
from frazil.lake.tables.accept import accept
from frazil.lake.tables.schema import TableName
from frazil.lake.tables.store import TableStore
from frazil.lake.tables.token import logs

NAME = TableName("default", "orders")


@pytest.fixture
def tables(tmp_path: Path) -> TableStore:
    settings = frazil.Settings(data=tmp_path)
    properties = catalog_properties(settings)
    store = TableStore(open_catalog(settings), properties.get("warehouse"), properties)
    store.ensure(NAME, ENVELOPE)
    return store


def move(tables: TableStore, start: int, end: int) -> None:
    """A move without files is enough here: only the token matters."""
    tables.commit(NAME, [Moved("log", start, end, (), 0, "")], f"move-{start}", lambda _: None)


def test_a_new_table_goes_on_where_the_log_begins(tables: TableStore) -> None:
    assert accept(tables._catalog, NAME, "log", 70, "word") == 70
    tables.forget(NAME)
    tables.ensure(NAME, ENVELOPE)
    token = tables.token(NAME, "log", 0)
    assert token is not None
    assert token.end == 70
    move(tables, 70, 90)
    assert tables.token(NAME, "log", 0).end == 90  # type: ignore[union-attr]


@pytest.mark.parametrize(("first_offset", "expected"), [(0, 10), (15, 15)])
def test_a_table_that_was_rolled_back_goes_on_from_what_it_has(
    tables: TableStore, first_offset: int, expected: int
) -> None:
    move(tables, 0, 10)
    before = tables._catalog.load_table(NAME.identifier).current_snapshot()
    move(tables, 10, 20)
    assert before is not None
    table = tables._catalog.load_table(NAME.identifier)
    table.manage_snapshots().set_current_snapshot(before.snapshot_id).commit()
    tables.forget(NAME)
    tables.ensure(NAME, ENVELOPE)
    with pytest.raises(TableRolledBack):
        tables.token(NAME, "log", 0)
    assert accept(tables._catalog, NAME, "log", first_offset, "word") == expected
    tables.forget(NAME)
    tables.ensure(NAME, ENVELOPE)
    assert tables.token(NAME, "log", 0).end == expected  # type: ignore[union-attr]


def test_a_table_with_rows_of_another_log_is_refused(tables: TableStore) -> None:
    """Accepted, it would have two logs with the same offsets, and every reader would refuse it."""
    move(tables, 0, 10)
    before = tables._catalog.load_table(NAME.identifier).metadata
    with pytest.raises(frazil.TableRefused, match="holds the rows of an earlier topic of that name"):
        accept(tables._catalog, NAME, "another", 0, "word")
    with pytest.raises(frazil.TableRefused, match="not handed over yet"):
        accept(tables._catalog, NAME, "another", 0, "word", former=["log"])
    assert tables._catalog.load_table(NAME.identifier).metadata == before
    assert accept(tables._catalog, NAME, "another", 5, "word", partition=1) == 5
    tables.forget(NAME)
    tables.ensure(NAME, ENVELOPE)
    assert tables.token(NAME, "another", 1).end == 5  # type: ignore[union-attr]


def test_a_log_that_the_table_has_nothing_of_yet_is_accepted_as_its_own_partition(tables: TableStore) -> None:
    move(tables, 0, 10)
    assert accept(tables._catalog, NAME, "other", 70, "word", partition=1) == 70
    assert logs(tables._catalog.load_table(NAME.identifier)) == {"log": 0, "other": 1}


def test_a_log_whose_offsets_the_rows_of_an_earlier_one_have_is_not_accepted(tables: TableStore) -> None:
    move(tables, 0, 10)
    before = tables._catalog.load_table(NAME.identifier).metadata
    with pytest.raises(frazil.TableRefused, match="holds the rows of an earlier topic of that name"):
        accept(tables._catalog, NAME, "other", 70, "word")
    assert tables._catalog.load_table(NAME.identifier).metadata == before
