"""Azurite, Microsoft's own stand-in for Azure Blob Storage: not Azure itself. It keeps everything in memory."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from pyarrow.fs import AzureFileSystem

from parts.processes import accepts, free_port, part, running

ACCOUNT = "devstoreaccount1"
KEY = base64.b64encode(hashlib.sha512(b"an account of the tests").digest()).decode()


@dataclass(frozen=True, slots=True)
class Azurite:
    port: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def make_container(self, name: str) -> str:
        host = f"127.0.0.1:{self.port}"
        files = AzureFileSystem(
            ACCOUNT,
            account_key=KEY,
            blob_storage_authority=host,
            dfs_storage_authority=host,
            blob_storage_scheme="http",
            dfs_storage_scheme="http",
        )
        files.create_dir(name)
        return name

    def settings(self, container: str, **changed: Any) -> dict[str, Any]:
        """The section `object_store`, with the key of the account unless a token is given."""
        keys = {} if "session_token" in changed else {"secret_access_key": KEY}
        store = {"type": "azure", "bucket": container, "endpoint": self.endpoint, "access_key_id": ACCOUNT}
        return {**store, **keys, **changed}


def sas_token(end: str = "2100-01-01T00:00:00Z") -> str:
    """A shared access signature of the account for all of its blobs, made as Azure's manual says."""
    version, rights, services, kinds = "2021-06-08", "rwdlacup", "b", "sco"
    signed = [ACCOUNT, rights, services, kinds, "", end, "", "", version, "", ""]
    code = hmac.new(base64.b64decode(KEY), "\n".join(signed).encode(), hashlib.sha256).digest()
    fields = {"sv": version, "ss": services, "srt": kinds, "sp": rights, "se": end}
    return urlencode({**fields, "sig": base64.b64encode(code).decode()})


@contextlib.contextmanager
def azurite(folder: Path) -> Iterator[Azurite]:
    folder.mkdir(parents=True)
    port = free_port()
    program = part("azurite/node_modules/azurite/dist/src/blob/main.js")
    options = ["--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck", "--silent"]
    command = ["node", program, "--blobHost", "127.0.0.1", "--blobPort", str(port), *options]
    with running(command, {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"}, folder / "server.log", lambda: accepts(port)):
        yield Azurite(port)
