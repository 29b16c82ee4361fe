"""An S3 server: versitygw over a folder. A bucket is a folder in it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parts.processes import accepts, free_port, part, running

ACCESS_KEY = "frazil-tests"
SECRET_KEY = "s3-s3cret-of-the-tests"
REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class S3:
    port: int
    folder: Path

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def make_bucket(self, name: str) -> str:
        (self.folder / name).mkdir(exist_ok=True)
        return name

    def settings(self, bucket: str, **changed: Any) -> dict[str, Any]:
        """The section `object_store`."""
        return {
            "type": "s3",
            "bucket": bucket,
            "region": REGION,
            "endpoint": self.endpoint,
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
            **changed,
        }


@contextlib.contextmanager
def s3_server(folder: Path, *options: str) -> Iterator[S3]:
    """The side folder must not begin with the other's name: the server takes that for a bucket's path."""
    objects, side, port = folder / "objects", folder / "side", free_port()
    for each in (objects, side):
        each.mkdir(parents=True)
    command = [part("versitygw"), "--port", f"127.0.0.1:{port}", *options, "posix", "--sidecar", side, objects]
    keys = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    with running(command, keys, folder / "server.log", lambda: accepts(port)):
        yield S3(port, objects)
    shutil.rmtree(folder, ignore_errors=True)
