"""What PyIceberg is told for each catalog and store, and what is told of its errors."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.catalog.sql import SqlCatalogBaseTable
from sqlalchemy import event

from frazil.core.errors import InvalidSettings, LakeUnavailable
from frazil.core.settings import Settings, make_settings
from frazil.lake.catalogs.error_text import masked, reason
from frazil.lake.catalogs.opening import catalog_properties, open_catalog
from frazil.lake.catalogs.rest import with_last_column_ids

KEYS = {"access_key_id": "the-key", "secret_access_key": "the-secret", "session_token": "the-token"}


def properties(**sections: Any) -> dict[str, str]:
    return catalog_properties(make_settings(sections))


def test_unset_it_is_a_file_and_a_folder_in_the_data_folder(tmp_path: Path) -> None:
    found = properties(data=tmp_path)
    assert found["type"] == "sql"
    assert found["uri"] == f"sqlite:///{tmp_path}/catalog.db?timeout=60"
    assert found["warehouse"] == f"file://{tmp_path}/warehouse"


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("sqlite:////x/c.db", "sqlite:////x/c.db?timeout=60"),
        ("sqlite:////x/c.db?timeout=5", "sqlite:////x/c.db?timeout=5"),
        ("postgresql+psycopg2://u:p@h/d", "postgresql+psycopg2://u:p@h/d?connect_timeout=10"),
        ("postgresql://h/d?sslmode=require", "postgresql://h/d?sslmode=require&connect_timeout=10"),
        ("mysql://h/d", "mysql://h/d"),
    ],
)
def test_a_database_is_waited_for_but_not_for_ever(uri: str, told: str) -> None:
    assert properties(catalog={"uri": uri})["uri"] == told


def test_s3_is_told_in_its_own_words() -> None:
    store = {"type": "s3", "bucket": "b", "prefix": "/a/b/", "region": "r", "endpoint": "http://h:1", **KEYS}
    found = properties(object_store=store)
    assert found["warehouse"] == "s3://b/a/b"
    assert {name: value for name, value in found.items() if name.startswith("s3.")} == {
        "s3.endpoint": "http://h:1",
        "s3.region": "r",
        "s3.access-key-id": "the-key",
        "s3.secret-access-key": "the-secret",
        "s3.session-token": "the-token",
        "s3.force-virtual-addressing": "false",
        "s3.connect-timeout": "5",
        "s3.request-timeout": "20",
    }


def test_the_patience_with_a_store_is_the_users_to_choose() -> None:
    store = {"type": "s3", "bucket": "b", "properties": {"s3.request-timeout": "90"}}
    assert properties(object_store=store)["s3.request-timeout"] == "90"


def test_gcs_is_told_in_its_own_words() -> None:
    store = {"type": "gcs", "bucket": "b", "endpoint": "http://h:1", "session_token": "t"}
    found = properties(object_store={**store, "properties": {"gcs.project-id": "p"}})
    assert found["warehouse"] == "gs://b"
    assert {name: value for name, value in found.items() if name.startswith("gcs.")} == {
        "gcs.service.host": "http://h:1",
        "gcs.oauth2.token": "t",
        "gcs.project-id": "p",
    }


def azure(**given: Any) -> dict[str, str]:
    found = properties(object_store={"type": "azure", "bucket": "b", "access_key_id": "acct", **given})
    return {name: value for name, value in found.items() if name == "warehouse" or name.startswith("adls.")}


def test_azure_is_told_in_its_own_words() -> None:
    assert azure(prefix="p", secret_access_key="the-secret") == {
        "warehouse": "abfss://b@acct.dfs.core.windows.net/p",
        "adls.account-name": "acct",
        "adls.account-key": "the-secret",
    }
    found = azure(session_token="the-token", access_key_id=None, properties={"adls.account-name": "mine"})
    assert found == {
        "warehouse": "abfss://b@mine.dfs.core.windows.net",
        "adls.account-name": "mine",
        "adls.sas-token": "the-token",
    }


@pytest.mark.parametrize(
    ("endpoint", "host", "blob", "dfs", "scheme"),
    [
        ("http://127.0.0.1:10000/acct", "acct.dfs.core.windows.net", "127.0.0.1:10000", "127.0.0.1:10000", "http"),
        ("localhost:10000", "acct.dfs.core.windows.net", "localhost:10000", "localhost:10000", None),
        ("https://acct.blob.core.some.cn", "acct.dfs.core.some.cn", ".blob.core.some.cn", ".dfs.core.some.cn", "https"),
        ("acct.dfs.core.some.cn", "acct.dfs.core.some.cn", ".blob.core.some.cn", ".dfs.core.some.cn", None),
    ],
)
def test_an_endpoint_of_azure(endpoint: str, host: str, blob: str, dfs: str, scheme: str | None) -> None:
    found = azure(endpoint=endpoint)
    assert found["warehouse"] == f"abfss://b@{host}"
    assert (found["adls.blob-storage-authority"], found["adls.dfs-storage-authority"]) == (blob, dfs)
    assert found.get("adls.blob-storage-scheme") == found.get("adls.dfs-storage-scheme") == scheme


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"access_key_id": None}, "object_store: access_key_id is needed"),
        ({"access_key_id": ""}, "object_store: access_key_id is needed"),
        ({"secret_access_key": "a", "session_token": "b"}, "secret_access_key and session_token exclude each other"),
    ],
)
def test_azure_needs_an_account_and_one_kind_of_credential(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidSettings, match=said):
        azure(**given)


def test_glue_takes_the_keys_of_the_store() -> None:
    store = {"type": "s3", "bucket": "b", "region": "r", **KEYS}
    found = properties(catalog={"type": "glue", "uri": "http://glue:1"}, object_store=store)
    assert (found["type"], found["glue.endpoint"], found["glue.region"]) == ("glue", "http://glue:1", "r")
    assert (found["glue.access-key-id"], found["glue.secret-access-key"]) == ("the-key", "the-secret")
    assert "uri" not in found


def test_a_rest_catalog_that_was_told_no_store_decides_itself() -> None:
    catalog = {"type": "rest", "uri": "http://h:1", "token": "t", "credential": "a:b"}
    assert properties(catalog=catalog) == {"type": "rest", "uri": "http://h:1", "token": "t", "credential": "a:b"}


def test_what_is_given_as_a_property_wins() -> None:
    assert properties(catalog={"properties": {"uri": "sqlite:////mine.db"}})["uri"] == "sqlite:////mine.db"


def test_a_catalog_that_pyiceberg_knows_works_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from pyiceberg.utils.config import Config

    monkeypatch.setenv("PYICEBERG_CATALOG__ELSEWHERE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__ELSEWHERE__URI", f"sqlite:///{tmp_path}/elsewhere.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__ELSEWHERE__WAREHOUSE", f"file://{tmp_path}/elsewhere")
    for module in (
        "pyiceberg.catalog",
        "frazil.lake.pyiceberg_private",
    ):  # read on import
        monkeypatch.setattr(f"{module}._ENV_CONFIG", Config())
    catalog = open_catalog(make_settings({"catalog": {"type": "named", "name": "elsewhere"}}))
    catalog.create_namespace("ns")
    assert (tmp_path / "elsewhere.db").exists()
    assert catalog.properties["warehouse"] == f"file://{tmp_path}/elsewhere"


def test_a_catalog_in_memory_is_one_for_all_threads(tmp_path: Path) -> None:
    catalog = open_catalog(make_settings({"data": tmp_path, "catalog": {"type": "memory"}}))
    assert isinstance(catalog, InMemoryCatalog)
    threads = [threading.Thread(target=catalog.create_namespace, args=(f"ns{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(catalog.list_namespaces()) == [(f"ns{number}",) for number in range(8)]


def _make_namespaces(folder: Path, mark: str, count: int) -> None:
    catalog = open_catalog(Settings(data=folder))
    for number in range(count):
        catalog.create_namespace(f"{mark}{number}")


def test_two_processes_on_one_sqlite_catalog_wait_for_each_other(tmp_path: Path) -> None:
    open_catalog(Settings(data=tmp_path))
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=_make_namespaces, args=(tmp_path, mark, 60)) for mark in "ab"]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(open_catalog(Settings(data=tmp_path)).list_namespaces()) == 120


@pytest.mark.parametrize("uri", [None, "sqlite:///{}/own.db"], ids=["embedded", "sqlite elsewhere"])
def test_a_new_catalog_may_be_opened_by_two_processes_at_once(tmp_path: Path, uri: str | None) -> None:
    """The second one comes between the first one's look for the tables and their creation."""
    settings = make_settings({"data": tmp_path, "catalog": {"uri": uri.format(tmp_path)} if uri else {}})
    tables, openings = SqlCatalogBaseTable.metadata, iter(["the second one"])

    def open_once(*_: object, **__: object) -> None:
        if next(openings, None):
            open_catalog(settings)

    event.listen(tables, "before_create", open_once)
    try:
        open_catalog(settings).create_namespace("first")
    finally:
        event.remove(tables, "before_create", open_once)
    assert next(openings, None) is None
    assert open_catalog(settings).list_namespaces() == [("first",)]


def test_a_catalog_whose_tables_cannot_be_created_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    path.touch()
    settings = make_settings({"data": tmp_path, "catalog": {"uri": f"sqlite:///file:{path}?mode=ro&uri=true"}})
    with pytest.raises(LakeUnavailable, match="readonly"):
        open_catalog(settings)


SECRET = "s3cret/of a test"


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ({"token": SECRET}, f"token {SECRET} is wrong"),
        ({"credential": f"id:{SECRET}"}, f"client_secret={SECRET}"),
        ({"uri": "postgresql://me:s3cret%2Fof%20a%20test@h/d"}, f'password "{SECRET}" or s3cret%2Fof%20a%20test'),
        ({"uri": f"postgresql://h/d?password={SECRET}"}, f"password={SECRET}"),
        ({"s3.secret-access-key": SECRET}, f"signed with {SECRET}"),
        ({"adls.account-key": SECRET}, SECRET),
        ({"auth": {"basic": {"password": SECRET}}}, SECRET),
        ({}, "could not connect to postgresql://me:s3cret@h/d"),
    ],
)
def test_no_message_repeats_a_secret(known: dict[str, Any], text: str) -> None:
    shown = masked(text, known)
    assert "s3cret" not in shown
    assert "***" in shown


def test_a_reason_is_one_short_line() -> None:
    shown = reason(ValueError("first\nsecond\n" + "x" * 999), {})
    assert shown == "ValueError: first"
    assert len(reason(ValueError("x" * 999), {})) < 350
    assert reason(ValueError(), {}) == "ValueError: no reason given"


def test_an_unreachable_database_is_told_without_its_password() -> None:
    uri = "postgresql+psycopg2://me:s3cret%2F1@127.0.0.1:1/x"
    with pytest.raises(LakeUnavailable) as refused:
        open_catalog(make_settings({"catalog": {"uri": uri}}))
    assert "s3cret" not in refused.value.message
    assert "catalog" in refused.value.message


def test_a_new_schema_is_sent_with_its_highest_column_id() -> None:
    body = (
        b'{"updates": [{"action": "add-schema", "schema": {"schema-id": 99, "fields": [{"id": 1, "type": '
        b'{"type": "map", "key-id": 7, "value-id": 8}}, {"id": 2, "type": "long"}]}}, {"action": "other"}]}'
    )
    sent = with_last_column_ids(body)
    assert b'"last-column-id": 8' in sent
    assert sent.count(b"last-column-id") == 1
