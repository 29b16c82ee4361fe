"""A log that was renumbered hands its table over, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException

import frazil
from frazil.core.settings import Settings
from frazil.lake.catalogs.opening import open_catalog
from frazil.lake.tables.handover import hand_over
from frazil.lake.tables.schema import TableName
from frazil.lake.tables.token import ends
from frazil.node.query.session import SqlSession
from frazil.node.renumber.renumber import renumber
from frazil.node.tiers.logs import FileView
from parts.behind import (
    NEW,
    OLD,
    ORDERS,
    check_moved,
    log_id,
    proof_of,
    restored,
    settings_in,
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_in(tmp_path)


@pytest.mark.parametrize("lost", [True, False])
def test_a_handover_whose_answer_is_lost_or_refused_is_done_once(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    restored(settings, NEW[:3])
    real, calls = SqlCatalog.commit_table, 0

    def commit(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            return real(*arguments)
        if lost:
            real(*arguments)
            raise ConnectionError("no answer")
        raise CommitFailedException("someone was quicker")

    monkeypatch.setattr(SqlCatalog, "commit_table", commit)
    assert renumber(settings, ORDERS).handed_over
    assert calls == (1 if lost else 2)
    monkeypatch.undo()
    assert ends(open_catalog(settings).load_table(("shop", "orders"))) == {log_id(settings): 10}
    check_moved(settings, [*OLD, *NEW[:3]])


def test_a_table_that_is_away_by_then_is_handed_over_later(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    restored(settings, NEW[:3])

    def commit(*_: Any) -> Any:
        raise ConnectionError("away")

    monkeypatch.setattr(SqlCatalog, "commit_table", commit)
    monkeypatch.setattr("frazil.node.renumber.renumber._back_off", lambda _: None)
    done = renumber(settings, ORDERS)
    assert (done.handed_over, "could not be handed over" in str(done.table_error)) == (False, True)
    monkeypatch.undo()
    (problem,) = proof_of(settings).problems
    assert "not handed over yet" in problem.detail
    with frazil.open(settings) as storage:
        topic = storage.topic(ORDERS, create=False)
        assert [message.payload for message in topic.read(10)] == NEW[:3], "the log's own rows need no table"
        with pytest.raises(frazil.TableRefused, match="is not handed over yet"):
            list(topic.read("earliest"))
        with (
            SqlSession(settings, FileView(settings)) as session,
            pytest.raises(frazil.TableRefused, match="not handed"),
        ):
            session.run("select count(*) from shop.orders")
    assert renumber(settings, ORDERS, dry_run=True).handover_due
    assert ends(open_catalog(settings).load_table(("shop", "orders"))) != {log_id(settings): 10}
    assert renumber(settings, ORDERS).handed_over
    check_moved(settings, [*OLD, *NEW[:3]])


def test_a_table_that_has_changed_is_not_handed_over(settings: Settings) -> None:
    restored(settings, [])
    with pytest.raises(frazil.TableRefused, match="had offsets up to 9 when"):
        hand_over(open_catalog(settings), TableName("shop", "orders"), log_id(settings), 9, "new", lambda _: None)
