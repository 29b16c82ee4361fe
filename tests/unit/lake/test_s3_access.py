"""S3 is opened as PyIceberg opens it, but for the requests that a small file takes."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

import frazil
from frazil.core.settings import make_settings
from frazil.lake.files.file_io import TableFileIO
from frazil.lake.files.object_store import store_properties
from parts.in_process import MoverHere
from parts.s3 import s3_server

KEYS = {"s3.access-key-id": "key", "s3.secret-access-key": "secret", "s3.region": "eu-north-1"}
GIVEN = {
    "keys": {},
    "a token": {"s3.session-token": "token"},
    "keys of the client": {"client.access-key-id": "other", "client.region": "us-west-2"},
    "an address": {"s3.endpoint": "http://127.0.0.1:9", "s3.force-virtual-addressing": "true"},
    "times": {"s3.connect-timeout": "3", "s3.request-timeout": "4.5"},
    "a proxy": {"s3.proxy-uri": "http://proxy:3128"},
    "nobody": {"s3.access-key-id": "", "s3.secret-access-key": "", "s3.anonymous": "true"},
}


def options(files: PyArrowFileIO) -> dict[str, Any]:
    (found,) = files.fs_by_scheme("s3", "bucket").__reduce__()[1]
    return {name: value for name, value in found.items() if name != "allow_delayed_open"}


@pytest.mark.parametrize("what", GIVEN)
def test_every_property_means_what_it_means_to_pyiceberg(what: str) -> None:
    properties = {**KEYS, **GIVEN[what]}
    assert options(TableFileIO(properties)) == options(PyArrowFileIO(properties))


def test_settings_of_s3_name_it() -> None:
    store = make_settings({"object_store": {"type": "s3", "bucket": "lake"}}).object_store
    assert store_properties(store)["py-io-impl"] == "frazil.lake.files.file_io.TableFileIO"


def test_each_small_file_that_a_move_writes_takes_one_request(tmp_path: Path) -> None:
    said = tmp_path / "requests.log"
    with s3_server(tmp_path / "s3", "--access-log", str(said)) as store:
        settings = make_settings({"data": tmp_path / "data", "object_store": store.settings(store.make_bucket("lake"))})
        with frazil.open(settings) as storage:
            here = MoverHere(settings, storage)
            for _ in range(2):
                storage.topic("/shop/orders").publish(b"tea")
                assert here.errors() == {"/shop/orders": None}
            assert here.rows("/shop/orders", "_payload") == [{"_payload": b"tea"}] * 2
    asked = re.findall(r" s3_(\w+) (\S+)", said.read_text(encoding="utf-8"))  # whole, for the server has ended
    puts = Counter(key for kind, key in asked if kind == "PutObject")
    assert Counter(Path(key).suffix for key in puts) == {".avro": 5, ".json": 3, ".parquet": 2}
    assert set(puts.values()) == {1}
    assert not [kind for kind, _ in asked if "Multipart" in kind or kind == "UploadPart"]
    manifests = Counter(kind for kind, key in asked if key.endswith(".avro"))
    assert manifests["HeadObject"] == manifests["GetObject"], "the length of what was written was asked for"
