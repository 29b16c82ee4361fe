"""A query of a server's caller: it sees the topics that it names, changes nothing, and stays within its limits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import frazil
from frazil.core.settings import Settings, SyncMode, WalSettings
from frazil.node.query import parse as sql_parse
from frazil.node.query import session as sql
from frazil.node.query.session import SqlSession
from frazil.node.tiers.logs import FileView
from parts.moving import HandMover

WORD = "c0ffee-of-the-host"

Ask = Callable[[str], str]

a_python_variable = pa.table({"word": [WORD]})


@pytest.fixture
def ask(settings: Settings, topic: frazil.Topic) -> Ask:
    def run(query: str) -> str:
        """The answer, or what the error says."""
        with SqlSession(settings, FileView(settings), confined=True) as session:
            try:
                return str([row for batch in session.run(query).batches for row in batch.to_pylist()])
            except frazil.InvalidInput as error:
                return f"{error.code}: {error.message}"

    return run


@pytest.fixture
def host(tmp_path: Path) -> Path:
    folder = tmp_path / "host"
    folder.mkdir()
    (folder / "secret.csv").write_text(f"{WORD},b\n1,{WORD}\n")
    (folder / "link.csv").symlink_to(folder / "secret.csv")
    return folder


READING = [
    "select * from read_text('{file}')",
    "select nope from read_csv('{file}')",
    "select * exclude (nope) from read_csv('{file}', header=true)",
    "select columns('nope') from read_csv('{file}')",
    "from read_csv('{file}') unpivot (v for n in (nope))",
    "select * from read_csv('{file}', skip=0) t natural join (select 1 as q) u",
    "select * from read_blob('{file}')",
    "select * from read_json('{file}')",
    "select * from read_parquet('{file}')",
    "select * from parquet_metadata('{file}')",
    "select * from sniff_csv('{file}')",
    "select * from glob('{folder}/*')",
    "select * from '{file}'",
    'select * from "{file}"',
    "select * from '{folder}/link.csv'",
    "select * from read_text('{folder}/link.csv')",
    "select * from query_table('{file}')",
    "select * from query('select * from read_text(''{file}'')')",
    "select * from json_execute_serialized_sql(json_serialize_sql('select * from read_text(''{file}'')'))",
    "select (select content from read_text('{file}')) from shop.orders limit 1",
    "with x as (select * from read_text('{file}')) select * from x",
    "explain analyze select * from read_csv('{file}')",
    "describe select * from read_csv('{file}')",
    "summarize select * from read_csv('{file}')",
    "select * from a_python_variable",
    "select getenv('FRAZIL_TEST_WORD')",
    "select * from duckdb_settings()",
    "select current_setting('http_proxy')",
    "select * from read_csv('http://127.0.0.1:1/x')",
    "select * from 's3://bucket/x.parquet'",
    "pivot (select * from read_csv('{file}')) on b",
]

CHANGING = [
    "copy (select 42 as x) to '{made}'",
    "explain analyze copy (select 42 as x) to '{made}'",
    "explain /* c */ analyze copy (select 42 as x) to '{made}'",
    "with x as (copy (select 42 as x) to '{made}') select 1",
    "with x as (copy (select 42 as x) to '{data}') select 1",
    "select * from (with x as (copy (select 42 as x) to '{made}') select 1)",
    "explain analyze with x as (copy (select 42 as x) to '{data}') select 1",
    "with x as (delete from shop.orders returning *) select * from x",
    "attach '{made}' as made",
    "export database '{made}'",
    "install httpfs",
    "load '{file}'",
    "set enable_external_access = true",
    "set memory_limit = '100GB'",
    "pragma enable_profiling",
    "call enable_logging(storage = 'file', storage_path = '{made}')",
    "select * from enable_logging(storage => 'file', storage_path => '{made}')",
    "create table t as select 1",
    "select 1; copy (select 42) to '{made}'",
    "execute x",
]


def _filled(query: str, host: Path, settings: Settings) -> str:
    data = next(path for path in settings.data.rglob("*.parquet"))
    names = {"file": host / "secret.csv", "folder": host, "made": host / "made", "data": data}
    for name, path in names.items():
        query = query.replace("{" + name + "}", str(path))
    return query


SETTINGS = [
    "select current_setting('{name}')",
    "select pg_catalog.current_setting('{name}')",
    "select '{name}'.current_setting()",
    "select list_transform(['{name}'], lambda one: current_setting(one))",
    "select _offset from shop.orders where current_setting('{name}') = ''",
    "select json_serialize_plan('select current_setting(''{name}'')', optimize := true)",
    "select _offset, json_serialize_plan('from duckdb_settings()') from shop.orders",
    "select * from duckdb_settings() where name = '{name}'",
    "select * from pg_settings where name = '{name}'",
    "select * from pg_catalog.pg_settings where name = '{name}'",
    "select * from (summarize pg_settings)",
    "select * from (with pg_settings as (select 1) select 1) t, pg_settings where name = '{name}'",
    "select * from (with \"PG_SETTINGS\" as (select 1) select 1) t, Pg_Settings where name = '{name}'",
    "select (with pg_settings as (select 1) select 1), setting from pg_settings where name = '{name}'",
    "show {name}",
    "explain show {name}",
    "select * from (show {name})",
    'select * from (show "{name}")',
    "select * from (SHOW {name}), shop.orders",
    "select (select * from (show {name})) as found from shop.orders",
    "with x as (from (show {name})) select * from x",
    "describe from (show {name})",
    "explain analyze select * from (with pg_settings as (select 1) select 1) t, pg_settings where name = '{name}'",
]


@pytest.mark.parametrize("query", SETTINGS)
def test_no_setting_of_the_host_is_told(ask: Ask, query: str) -> None:
    """Among DuckDB's settings are folders of the host and of its user."""
    for name in ("secret_directory", "temp_directory", "allowed_paths"):
        assert ask(query.replace("{name}", name)).startswith("invalid_input: sql: "), query


def test_no_function_reads_the_catalog_of_duckdb(ask: Ask) -> None:
    """In it, a topic is a view that names its files. A macro may read it though the query names no table."""
    with duckdb.connect() as duck:
        macros = "from duckdb_functions() where function_type = 'macro' and macro_definition like '%FROM %'"
        found = {
            (name, len(words)) for name, words in duck.execute(f"select function_name, parameters {macros}").fetchall()
        }
    harmless = {("format_type", 2), ("get_block_size", 1)}  # names of types; the size of a block
    assert found >= harmless | {("pg_get_viewdef", 1)}
    for name, count in found - harmless:
        for function in (name, f"pg_catalog.{name}", name.upper()):
            query = f"select {function}({', '.join(['n'] * count)}) from range(9) t(n), shop.orders"
            assert ask(query) == f"invalid_input: sql: the function {name} is not allowed through a server", query


def test_columns_are_described_in_every_form(ask: Ask) -> None:
    for query in ("describe shop.orders", "show shop.orders", "select * from (describe shop.orders)"):
        assert "'column_name': '_payload'" in ask(query), query
    assert "'column_name': '_payload'" in ask("select * from (summarize shop.orders)")
    assert "'column_name': 'a'" in ask("describe select 1 as a")


def test_what_a_with_defines_may_have_the_name_of_a_view_with_a_schema(ask: Ask) -> None:
    query = "with tables as (select 7 as a), columns as (select a from tables) select a from columns"
    assert ask(query) == "[{'a': 7}]"


@pytest.fixture
def without_the_first_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB's own locks must hold by themselves."""
    monkeypatch.setattr(sql_parse, "_check_function", lambda _: None)


def _check_nothing_is_read(ask: Ask, host: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://user:{WORD}@127.0.0.1:1")
    monkeypatch.setenv("FRAZIL_TEST_WORD", WORD)
    for query in READING:
        assert WORD not in ask(_filled(query, host, settings)), query


def test_no_file_or_variable_of_the_host_is_read(
    ask: Ask, host: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check_nothing_is_read(ask, host, settings, monkeypatch)


@pytest.mark.usefixtures("without_the_first_check")
def test_duckdb_alone_reads_no_file_of_the_host(
    ask: Ask, host: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check_nothing_is_read(ask, host, settings, monkeypatch)


def test_nothing_is_written_and_no_setting_changed(ask: Ask, host: Path, settings: Settings) -> None:
    before = {path: path.read_bytes() for path in settings.data.rglob("*.parquet")}
    for query in CHANGING:
        assert ask(_filled(query, host, settings)).startswith("invalid_input: sql: "), query
    assert sorted(path.name for path in host.iterdir()) == ["link.csv", "secret.csv"]
    assert {path: path.read_bytes() for path in settings.data.rglob("*.parquet")} == before


def test_files_of_a_topic_that_the_query_does_not_name_are_not_read(
    ask: Ask, storage: frazil.Storage, settings: Settings, mover: HandMover, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_parse, "_check_function", lambda _: None)
    other = storage.topic("/private/other")
    other.publish(WORD)
    mover.move(other)
    (file,) = (path for path in settings.data.rglob("*.parquet") if "private" in str(path))
    named = next(path for path in settings.data.rglob("*.parquet") if "shop" in str(path))
    around = named.parent / os.path.relpath(file, named.parent)
    for path in (file, around):
        assert "disabled by configuration" in ask(
            f"select * from shop.orders o, read_parquet('{path}') limit 1"
        )  # o is named, the other is not


def test_ordinary_queries_work(ask: Ask) -> None:
    assert ask("select count(*) as n from shop.orders") == "[{'n': 5000}]"
    assert ask("with orders as (select 1 as a) select * from orders") == "[{'a': 1}]"
    assert ask("select r.range as n from range(2) r order by 1") == "[{'n': 0}, {'n': 1}]"
    assert "analyzed_plan" in ask("explain analyze select count(*) from shop.orders")
    assert "_payload" in ask("describe shop.orders")
    assert ask("select count(*) as n from shop.orders a join shop.orders b using (_offset)") == "[{'n': 5000}]"
    assert "no topic or table shop.nope" in ask("select (select max(x) from shop.nope)")
    assert "nested too deeply" in ask("select " + "abs(" * 400 + "1" + ")" * 400)


def test_a_query_that_needs_more_memory_is_refused_with_its_limit(ask: Ask) -> None:
    said = ask("select length(string_agg(repeat('x', 1000000), '')) from range(1500)")
    assert said.startswith("query_too_large: ")
    assert "memory than its limit of 1024 MiB" in said


def test_a_query_that_needs_more_temporary_space_is_refused_with_its_limit(
    ask: Ask, storage: frazil.Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = storage.topic("/default/big")
    for _ in range(6):
        topic.publish_many([os.urandom(1 << 20)] * 4)
    assert "24" in ask("select count(*) as n from big")
    monkeypatch.setattr(sql, "SPACE_BYTES_MAX", 2 << 20)
    said = ask("select count(*) as n from big")
    assert said.startswith("query_too_large: ")
    assert "temporary space than its limit of 2 MiB" in said


def test_temporary_files_are_removed(
    ask: Ask, storage: frazil.Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    topic = storage.topic("/default/big")
    for _ in range(6):
        topic.publish_many([os.urandom(1 << 20)] * 4)
    assert "96" in ask("select count(*) * 4 as n from big a")
    assert not list((tmp_path / "temporary").iterdir())


LOG_MIB = 320

CHILD = """
import json, resource, sys
from frazil.core.settings import make_settings
from frazil.node.tiers.logs import FileView
from frazil.node.query.session import SqlSession
settings = make_settings({"data": sys.argv[1]})
def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
def ask(query):
    with SqlSession(settings, FileView(settings), confined=True) as session:
        return [row for batch in session.run(query).batches for row in batch.to_pylist()]
ask("select 1")
before = peak_mib()
rows = ask("select count(*) as n, sum(octet_length(_payload))::bigint as size from big")
with SqlSession(settings, FileView(settings), confined=True) as session:
    assert sum(batch.num_rows for batch in session.run("select * from big").batches) == rows[0]["n"]
print(json.dumps([rows, peak_mib() - before]))
"""


def test_a_log_is_not_copied_into_memory(tmp_path: Path) -> None:
    wal = WalSettings(sync_mode=SyncMode.NONE, cache_capacity=0)
    with frazil.open(Settings(data=tmp_path / "data", wal=wal)) as storage:
        rows = pa.record_batch({"_payload": pa.array([bytes(1 << 20)] * 4, pa.binary())})
        for _ in range(LOG_MIB // 4):
            storage.topic("/default/big").publish_many(rows)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        check=True,
        timeout=120,
        env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},
    )
    answer, grown_mib = json.loads(done.stdout)
    assert answer == [{"n": LOG_MIB, "size": LOG_MIB << 20}]
    assert grown_mib < LOG_MIB // 2
