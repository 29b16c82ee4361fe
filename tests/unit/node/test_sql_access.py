"""What the caller of a query may not read does not exist in it, however SQL names it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

import frazil
from frazil.core.errors import InvalidInput
from frazil.core.principal import Principal
from frazil.core.settings import Settings, make_settings
from frazil.lake.tables.schema import TableName
from frazil.node.access.gate import OpenGate
from frazil.node.access.portable import grants_to_json
from frazil.node.access.roles import BUILT_IN, RoleGrant, made_role
from frazil.node.node import Node
from frazil.node.query.process import SqlProcess
from frazil.node.query.readable import readable
from frazil.node.query.session import AsOf, SqlSession
from frazil.node.tiers.logs import FileView
from parts.moving import HandMover

HIDDEN = ["secret", "hidden-part-0", "hidden-part-1", "hidden", "unmoved", "deeper-part-0-part-1", "deeper-part-0"]
"""Tables of the namespace `shop`: moved; partitions, moved and not; only in the log; with a name of two partitions."""
STORED = ["secret", "hidden-part-0", "hidden-part-1", "unmoved", "deeper-part-0-part-1"]
MOVED = ["orders", "secret", "hidden-part-0"]
WORD = b"c0ffee"


def role(*rules: tuple[str, str, str, str]) -> RoleGrant:
    """Rules are (effect, action, kind, pattern)."""
    told = [
        {"effect": effect, "actions": [action], "kind": kind, "pattern": pattern}
        for effect, action, kind, pattern in rules
    ]
    return RoleGrant(made_role("of-a-test", told), "*")


READER = [RoleGrant(BUILT_IN["reader"], "/shop/orders"), RoleGrant(BUILT_IN["reader"], "/default/orders")]
ONE_DENIED = [
    role(
        ("allow", "read", "*", "/shop/*"),
        ("allow", "read", "*", "/default/*"),
        *(("deny", "read", "*", f"/shop/{name}") for name in ("secret", "hidden", "unmoved", "deeper*")),
        *(("deny", "read", "*", f"/default/{name}") for name in ("secret", "hidden", "unmoved", "deeper*")),
    )
]

WAYS = [
    "select * from shop.{t}",
    "select * from SHOP.{t}",
    "from shop.{t}",
    "table shop.{t}",
    "select count(*) from shop.{t}",
    "select * from {t}",
    "select * from main.{t}",
    "select * from memory.shop.{t}",
    "select * from shop.main.{t}",
    "with x as (select * from shop.{t}) select * from x",
    "with x as materialized (select * from shop.{t}) select 1",
    "with recursive x as (select 1 as n union all select n + 1 from x, shop.{t} where n < 2) select * from x",
    "with {t} as (select * from shop.{t}) select * from {t}",
    "with {t} as (select 1 as one) select * from shop.{t}",
    "with {t} as (select 1 as one) select * from {t}",
    "select * from (with {t} as (select 1) select 1) x, {t}",
    "select (select count(*) from shop.{t})",
    "select * from shop.orders where exists (select 1 from shop.{t})",
    "select * from shop.orders where _offset in (select _offset from shop.{t})",
    "select count(*) from shop.orders join shop.{t} using (_offset)",
    "select count(*) from shop.orders left join shop.{t} on false",
    "select _payload from shop.orders union all select _payload from shop.{t}",
    "select * from shop.orders, lateral (select * from shop.{t}) x",
    "explain select * from shop.{t}",
    "explain analyze select * from shop.{t}",
    "describe shop.{t}",
    "describe select * from shop.{t}",
    "show shop.{t}",
    "summarize shop.{t}",
    "select * from (describe shop.{t})",
    "select * from (summarize shop.{t})",
    "select * from (show shop.{t})",
    "select * from (show tables)",
    "select * from (show all tables)",
    "pivot shop.{t} on _offset",
    "select * from (pivot shop.{t} on _offset using count(*))",
    "unpivot shop.{t} on _offset into name n value v",
    "select * from query_table('shop.{t}')",
    "select * from query('select * from shop.{t}')",
    "select * from information_schema.tables",
    "select * from information_schema.columns where table_name = {s}",
    "select * from pg_catalog.pg_tables",
    "select * from pg_catalog.pg_views where viewname = {s}",
    "select * from duckdb_tables()",
    "select * from duckdb_views()",
    "select * from duckdb_tables",
    "select * from sqlite_master",
    "select * from pragma_table_info('shop.{t}')",
    "select * from pragma_show('shop.{t}')",
    "select {s}::regclass",
    "select nextval({s})",
    "select has_table_privilege({s}, 'select')",
    "select * from shop.{t} at (version => 1)",
    "select * from positional join shop.{t}",
    "select * from shop.orders asof join shop.{t} using (_offset)",
    "select struct_pack(x := (select min(_payload) from shop.{t}))",
    "select * from (values ((select count(*) from shop.{t})))",
    "select * from range((select count(*) from shop.{t}))",
    "select list((select _payload from shop.{t} limit 1))",
]

SOME = WAYS[::6]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with filled(tmp_path_factory.mktemp("with"), ["orders", *STORED]) as settings:
        yield settings


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """The same without what is hidden in the other."""
    with filled(tmp_path_factory.mktemp("without"), ["orders"]) as settings:
        yield settings


@contextmanager
def filled(folder: Path, names: list[str]) -> Iterator[Settings]:
    settings = make_settings({"data": folder / "data"})
    with frazil.open(settings) as storage:
        mover = HandMover(settings)
        for name in names:
            topic, row = storage.topic(f"/shop/{name}"), b"sold" if name == "orders" else WORD
            topic.publish_many([row] * 5)
            if name in MOVED:
                mover.move(topic)
                topic.publish(row)
        yield settings


def ask(settings: Settings, grants: list[RoleGrant] | None, query: str, as_of: AsOf | None = None) -> str:
    """The answer, or what the error says."""
    may_read = readable(None if grants is None else grants_to_json(grants))
    with SqlSession(settings, FileView(settings), as_of, confined=True, may_read=may_read) as session:
        try:
            answer = session.run(query)
            return str((answer.schema.names, [row for batch in answer.batches for row in batch.to_pylist()]))
        except frazil.FrazilError as error:
            return str(error.as_dict())


def named(way: str, name: str) -> str:
    quoted = f'"{name}"' if "-" in name else name
    return way.replace("shop.{t}'", f"shop.{name}'").replace("{t}", quoted).replace("{s}", f"'{name}'")


@pytest.mark.parametrize(
    ("grants", "name", "ways"),
    [*((grants, "secret", WAYS) for grants in (READER, ONE_DENIED, [])), *((READER, one, SOME) for one in HIDDEN[1:])],
)
def test_a_hidden_table_is_a_missing_one_in_every_way(
    settings: Settings, without: Settings, grants: list[RoleGrant], name: str, ways: list[str]
) -> None:
    for way in ways:
        hidden, missing = (ask(one, grants, named(way, name)) for one in (settings, without))
        assert hidden == missing, way
        assert WORD.decode() not in hidden, way


def test_each_caller_sees_its_own_table_in_the_same_ways(settings: Settings) -> None:
    """So the ways above are ways to read, and not only to fail."""
    keeper = [RoleGrant(BUILT_IN["reader"], "/shop/secret")]
    seen = [way for way in WAYS if WORD.decode() in ask(settings, keeper, named(way, "secret"))]
    assert len(seen) >= 10
    assert "'n': 6" in ask(settings, READER, "select count(*) as n from shop.orders")
    assert "'n': 6" in ask(settings, keeper, "select count(*) as n from shop.secret")
    assert "there is no topic or table shop.orders" in ask(settings, keeper, "select * from shop.orders")
    whole = [RoleGrant(BUILT_IN["reader"], "/shop/hidden")]
    assert "'n': 5" in ask(settings, whole, 'select count(*) as n from shop."hidden-part-1"')
    assert "'n': 11" in ask(settings, whole, "select count(*) as n from shop.hidden")
    assert "'n': 11" in ask(settings, None, "select count(*) as n from shop.hidden")


@pytest.mark.parametrize("kind", ["topic", "table"])
def test_rows_of_log_and_table_need_both_rights(settings: Settings, kind: str) -> None:
    half = [role(("allow", "read", kind, "/shop/orders"))]
    assert "there is no topic or table shop.orders" in ask(settings, half, "select 1 from shop.orders")


def test_the_right_to_one_topic_is_none_to_what_has_its_name_in_front(settings: Settings) -> None:
    """`deeper-part-0` could be a partition of `deeper`, but it is a topic with partitions itself."""
    reader = [RoleGrant(BUILT_IN["reader"], "/shop/deeper")]
    for name in ("deeper-part-0", "deeper-part-0-part-1"):
        assert "there is no topic or table" in ask(settings, reader, f'select * from shop."{name}"')
    own = [RoleGrant(BUILT_IN["reader"], "/shop/deeper-part-0")]
    assert WORD.decode() in ask(settings, own, 'select * from shop."deeper-part-0-part-1"')


def test_a_slash_in_a_name_crosses_no_border(settings: Settings) -> None:
    may_read = readable(grants_to_json([RoleGrant(BUILT_IN["reader"], "/shop/*")]))
    assert may_read(TableName("shop", "orders"))
    for name in (
        TableName("shop/secret", "x"),
        TableName("shop", "x/y"),
        TableName("shop", ".."),
        TableName("", "shop"),
    ):
        assert not may_read(name)


def test_an_earlier_snapshot_of_a_hidden_table_is_hidden_too(settings: Settings) -> None:
    table = HandMover(settings).catalog.load_table(("shop", "secret"))
    as_of = AsOf(table.metadata.current_snapshot_id)
    assert WORD.decode() in ask(settings, None, "select * from shop.secret", as_of)
    for at in (as_of, AsOf(7)):
        hidden, absent = (ask(settings, READER, f"select * from shop.{name}", at) for name in ("secret", "absent"))
        assert hidden.replace("secret", "absent") == absent


def test_the_files_of_a_hidden_table_cannot_be_opened(settings: Settings) -> None:
    assert settings.data is not None
    files = [path for path in settings.data.rglob("*.parquet") if "secret" in str(path)]
    assert files
    for way in ("read_parquet('{}')", "'{}'", '"{}"', "parquet_scan('{}')", "read_blob('{}')", "glob('{}')"):
        told = ask(settings, READER, f"select * from shop.orders, {way.format(files[0])} x")
        assert told.startswith("{'error': 'invalid_input'"), way
        assert WORD.decode() not in told


def test_a_catalog_that_ignores_case_opens_no_other_table(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    load = SqlCatalog.load_table
    monkeypatch.setattr(SqlCatalog, "load_table", lambda self, name: load(self, tuple(one.lower() for one in name)))
    loud = [RoleGrant(BUILT_IN["reader"], "/shop/SECRET")]
    assert "there is no topic or table" not in ask(settings, None, "select * from shop.SECRET")
    assert "there is no topic or table shop.SECRET" in ask(settings, loud, "select * from shop.SECRET")


@pytest.mark.parametrize(
    "rules", [[{"scope": "*", "rules": [{"effect": "maybe", "actions": ["read"], "kind": "*"}]}], [{"rules": []}], [7]]
)
def test_rules_that_are_not_understood_are_an_error_and_allow_nothing(rules: Any) -> None:
    with pytest.raises((InvalidInput, KeyError, TypeError)):
        readable(rules)
    assert not readable([])(TableName("shop", "orders"))


# --- the process of a query


def _command(settings: Settings, *verb: str) -> list[str]:
    return [sys.executable, "-m", "frazil", *verb, "--data", str(settings.data)]


def _ended(query: SqlProcess) -> tuple[pa.Table | None, str]:
    try:
        reader = query.opened()
        found = None if reader is None else reader.read_all()
        query.child.wait(60)
        return found, "\n".join(query.child.last_errors())
    finally:
        query.kill()
        query.close()


class _Gate(OpenGate):
    def rules_of(self, who: Principal) -> list[dict[str, Any]] | None:
        return grants_to_json(READER if who.name == "key:reader" else [])


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    settings = make_settings({"data": tmp_path / "data"})
    with frazil.open(settings) as storage:
        for name in ("orders", "secret"):
            storage.topic(f"/shop/{name}").publish(WORD)
    with frazil.open(tmp_path / "own") as storage:
        node = Node(storage, command=lambda *verb: _command(settings, *verb))
        node.gate = _Gate()
        yield node


def test_the_process_gets_the_callers_rules_and_keeps_to_them(node: Node) -> None:
    rows, _ = _ended(node.query(Principal("key:reader"), "select count(*) as n from shop.orders"))
    assert rows is not None
    assert rows.to_pylist() == [{"n": 1}]
    _, hidden = _ended(node.query(Principal("key:reader"), "select * from shop.secret"))
    _, absent = _ended(node.query(Principal("key:reader"), "select * from shop.absent"))
    assert json.loads(hidden.splitlines()[-1])["error"] == "invalid_input"
    assert hidden.replace("secret", "absent") == absent
    rows, told = _ended(node.query(Principal("key:stranger"), "select * from shop.orders"))
    assert rows is None
    assert "there is no topic or table shop.orders" in told


def test_a_process_without_rules_reads_nothing(node: Node) -> None:
    """A parent that sends the query alone must not be understood as one that allows everything."""
    query = node.query(Principal("key:reader"), "select 1")
    query._told = {"sql": "select * from shop.orders"}
    rows, told = _ended(query)
    assert rows is None
    assert "no query with the rules of its caller" in told
