"""Objects ask the store to encrypt them as set. No S3 server to be had manages keys, so the headers are checked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from frazil.core.errors import InvalidSettings
from frazil.core.settings import make_settings
from frazil.objects.opening import open_objects
from frazil.objects.store import ObjectStore


class Heard:
    """A server that accepts every put, and keeps its headers."""

    def __init__(self) -> None:
        heard = self.headers = {}

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                heard.update({name.lower(): value for name, value in self.headers.items()})
                self.send_response(200)
                self.send_header("ETag", '"one"')
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture
def heard() -> Iterator[Heard]:
    made = Heard()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def opened(tmp_path: Path, heard: Heard, **properties: str) -> ObjectStore:
    store = {
        "type": "s3",
        "bucket": "b",
        "endpoint": f"http://127.0.0.1:{heard.server.server_port}",
        "access_key_id": "a",
        "secret_access_key": "s",
        "properties": properties,
    }
    return open_objects(make_settings({"data": str(tmp_path), "objects": {"enabled": True, "store": store}}))


@pytest.mark.parametrize(("kind", "sent"), [("s3", "AES256"), ("kms", "aws:kms"), ("dsse-kms", "aws:kms:dsse")])
def test_objects_are_encrypted_as_the_settings_say(tmp_path: Path, heard: Heard, kind: str, sent: str) -> None:
    key = {} if kind == "s3" else {"s3.sse.key": "key-1"}
    opened(tmp_path, heard, **{"s3.sse.type": kind}, **key).create("one", b"content")
    assert heard.headers["x-amz-server-side-encryption"] == sent
    assert heard.headers.get("x-amz-server-side-encryption-aws-kms-key-id") == key.get("s3.sse.key")


def test_without_a_setting_the_bucket_decides(tmp_path: Path, heard: Heard) -> None:
    opened(tmp_path, heard).create("one", b"content")
    assert not [name for name in heard.headers if "encryption" in name]


def test_an_unknown_kind_of_encryption_is_refused(tmp_path: Path, heard: Heard) -> None:
    with pytest.raises(InvalidSettings, match=r"object_store\.properties\.s3\.sse\.type: must be one of none, s3, kms"):
        opened(tmp_path, heard, **{"s3.sse.type": "custom"})
