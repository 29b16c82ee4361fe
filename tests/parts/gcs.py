"""fake-gcs-server, a stand-in for Google Cloud Storage: not Google's. It lets everyone in, so a door before it asks for
the token."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyarrow.fs import GcsFileSystem

from parts.processes import accepts, free_port, part, running

TOKEN = "gcs-t0ken-of-the-tests"


@dataclass(frozen=True, slots=True)
class Gcs:
    port: int
    door_port: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.door_port}"

    def make_bucket(self, name: str) -> str:
        files = GcsFileSystem(
            anonymous=True, scheme="http", endpoint_override=f"127.0.0.1:{self.port}", project_id="tests"
        )
        files.create_dir(name)
        return name

    def settings(self, bucket: str, **changed: Any) -> dict[str, Any]:
        """The section `object_store`."""
        return {"type": "gcs", "bucket": bucket, "endpoint": self.endpoint, "session_token": TOKEN, **changed}


@contextlib.contextmanager
def gcs_server(folder: Path) -> Iterator[Gcs]:
    folder.mkdir(parents=True)
    port, door_port = free_port(), free_port()
    address = ["-host", "127.0.0.1", "-port", str(port), "-external-url", f"http://127.0.0.1:{door_port}"]
    server = [part("fake-gcs-server"), "-backend", "memory", "-log-level", "warn", "-scheme", "http", *address]
    door = [sys.executable, Path(__file__).with_name("gcs_door.py"), str(door_port), str(port), TOKEN]
    with (
        running(server, {}, folder / "server.log", lambda: accepts(port)),
        running(door, {}, folder / "door.log", lambda: accepts(door_port)),
    ):
        yield Gcs(port, door_port)
