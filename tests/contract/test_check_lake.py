"""A wrong setting of the lake is told apart and named: real servers refuse, and no secret is in what they say."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from frazil.core.errors import LakeUnavailable
from frazil.core.settings import Settings, make_settings
from frazil.lake.catalogs.check import check_lake
from parts.fixtures import LAKES
from parts.nessie import Nessie
from parts.postgres import ESCAPED, PASSWORD, Postgres
from parts.processes import free_port
from parts.s3 import S3, SECRET_KEY, s3_server


def refused(sections: dict[str, Any]) -> LakeUnavailable:
    with pytest.raises(LakeUnavailable) as error:
        check_lake(make_settings(sections))
    message = error.value.message
    for secret in (PASSWORD, ESCAPED, SECRET_KEY, "wrong-s3cret"):
        assert secret not in message
    assert error.value.__suppress_context__
    assert "\n" not in message
    assert message.startswith(f"{error.value.setting}: ")
    return error.value


@pytest.mark.parametrize("kind", LAKES)
def test_a_lake_that_is_as_it_should_be_passes(kind: str, lake_settings: Callable[[str], Settings]) -> None:
    check_lake(lake_settings(kind))


def test_the_check_leaves_nothing_behind(lake_settings: Callable[[str], Settings], tmp_path: Path) -> None:
    check_lake(lake_settings("sqlite"))
    assert not [path for path in tmp_path.rglob("*") if "frazil-check" in path.name]


@pytest.mark.parametrize("scheme", ["http", "postgresql+psycopg2"])
def test_a_catalog_that_is_not_there(scheme: str, tmp_path: Path) -> None:
    catalog = {
        "type": "rest" if scheme == "http" else "sql",
        "uri": f"{scheme}://me:wrong-s3cret@127.0.0.1:{free_port()}/x",
    }
    error = refused({"data": tmp_path, "catalog": catalog})
    assert error.setting == "catalog.uri"
    assert "cannot be reached" in error.message
    assert "start the catalog" in error.message


def test_a_catalog_with_a_wrong_password(postgres_server: Postgres, tmp_path: Path) -> None:
    uri = postgres_server.uri.replace(ESCAPED, "wrong-s3cret")
    error = refused({"data": tmp_path, "catalog": {"uri": uri}})
    assert error.setting == "catalog.uri"
    assert "refuses the credentials" in error.message
    assert "user and password" in error.message


def test_a_store_without_the_bucket(s3: S3, tmp_path: Path) -> None:
    error = refused({"data": tmp_path, "object_store": s3.settings("no-such-bucket")})
    assert error.setting == "object_store.bucket"
    assert "there is no bucket no-such-bucket" in error.message


@pytest.mark.parametrize("changed", [{"secret_access_key": "wrong-s3cret"}, {"access_key_id": "nobody"}])
def test_a_store_with_wrong_keys(s3: S3, tmp_path: Path, changed: dict[str, str]) -> None:
    store = s3.settings(s3.make_bucket("keys"), **changed)
    error = refused({"data": tmp_path, "object_store": store})
    assert error.setting == "object_store.access_key_id"


def test_a_bucket_that_cannot_be_written(tmp_path: Path) -> None:
    with s3_server(tmp_path / "s3", "--readonly") as read_only:
        store = read_only.settings(read_only.make_bucket("read-only"))
        error = refused({"data": tmp_path / "data", "object_store": store})
    assert error.setting == "object_store.bucket"
    assert "cannot be written with these credentials" in error.message


def test_a_store_that_is_not_there(s3: S3, tmp_path: Path) -> None:
    store = s3.settings("any", endpoint=f"http://127.0.0.1:{free_port()}")
    error = refused({"data": tmp_path, "object_store": store})
    assert error.setting == "object_store.endpoint"


def test_a_rest_catalog_with_a_store_that_is_wrong(rest_catalog: Nessie, s3: S3, tmp_path: Path) -> None:
    sections = {"type": "rest", "uri": rest_catalog.uri, "warehouse": "lake"}
    error = refused({"data": tmp_path, "catalog": sections, "object_store": s3.settings("no-such-bucket")})
    assert error.setting in ("object_store.bucket", "object_store.access_key_id")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """A file stands where the folder should be: that stops root too."""
    (tmp_path / "file").write_bytes(b"")
    error = refused({"data": tmp_path, "object_store": {"path": tmp_path / "file" / "warehouse"}})
    assert error.setting == "object_store.path"
    assert "cannot be written" in error.message
    assert os.fspath(tmp_path) in error.message


def test_a_name_that_pyiceberg_does_not_know() -> None:
    error = refused({"catalog": {"type": "named", "name": "nobody-knows-it"}})
    assert error.setting == "catalog.name"
