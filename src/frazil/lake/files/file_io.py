"""File access where PyIceberg is insufficient: on Azure, on Google Cloud Storage and in memory, and on S3, where it
uses four requests for a small file.

PyIceberg creates it by name from the property `py-io-impl`, so that Spark's tasks in other processes use it too.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
from pyarrow.fs import AzureFileSystem, FileSystem, FSSpecHandler, GcsFileSystem, PyFileSystem
from pyiceberg import io as names
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

from frazil.lake.files.s3 import CountedOutput, open_s3
from frazil.lake.pyiceberg_private import output_place

MEMORY = "memory"
AZURE_SCHEMES = ("abfs", "abfss", "wasb", "wasbs")
GCS_RETRY_S_MAX = 20
"""Google's library retries for 15 minutes by default."""

_NEVER = datetime(2200, 1, 1, tzinfo=timezone.utc)
_AZURE_ARGUMENTS = {
    names.ADLS_BLOB_STORAGE_AUTHORITY: "blob_storage_authority",
    names.ADLS_BLOB_STORAGE_SCHEME: "blob_storage_scheme",
    names.ADLS_DFS_STORAGE_AUTHORITY: "dfs_storage_authority",
    names.ADLS_DFS_STORAGE_SCHEME: "dfs_storage_scheme",
    names.ADLS_CLIENT_ID: "client_id",
    names.ADLS_CLIENT_SECRET: "client_secret",
    names.ADLS_TENANT_ID: "tenant_id",
}


class TableFileIO(PyArrowFileIO):
    @staticmethod
    def parse_location(location: str, properties: Properties = EMPTY_DICT) -> tuple[str, str, str]:
        """Map Azure's `container@account.host/path` to `container/path` of the account's file system."""
        scheme, netloc, path = PyArrowFileIO.parse_location(location, properties)
        if scheme in AZURE_SCHEMES and "@" in netloc:
            path = netloc.partition("@")[0] + path.removeprefix(netloc)
        return scheme, netloc, path

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> FileSystem:
        if scheme == MEMORY:
            return PyFileSystem(_MemoryFiles())
        if scheme in AZURE_SCHEMES:
            return AzureFileSystem(**self._azure_arguments(netloc or ""))
        return super()._initialize_fs(scheme, netloc)

    def _initialize_s3_fs(self, netloc: str | None) -> FileSystem:
        return open_s3(self.properties, netloc)

    def new_output(self, location: str) -> PyArrowFile:
        """Count manifests and their lists, which Python writes; Arrow writes the large Parquet files itself."""
        made = super().new_output(location)
        if not location.endswith(".avro"):
            return made
        return CountedOutput(made.location, *output_place(made))

    def _azure_arguments(self, netloc: str) -> dict[str, str]:
        """Prefer the account's own SAS token from the catalog over a configured key."""
        known, host = self.properties, netloc.partition("@")[2]
        arguments = {argument: known[name] for name, argument in _AZURE_ARGUMENTS.items() if known.get(name)}
        arguments["account_name"] = host.partition(".")[0] or known.get(names.ADLS_ACCOUNT_NAME, "")
        token = known.get(f"{names.ADLS_SAS_TOKEN}.{host}") or known.get(names.ADLS_SAS_TOKEN)
        if token:
            arguments["sas_token"] = "?" + token.removeprefix("?")  # PyArrow appends it directly to the address
        elif key := known.get(names.ADLS_ACCOUNT_KEY):
            arguments["account_key"] = key
        return arguments

    def _initialize_gcs_fs(self) -> FileSystem:
        """PyArrow accepts a token only with an expiry, which it then ignores: the store refuses an expired token."""
        known = self.properties
        arguments: dict[str, Any] = {"retry_time_limit": timedelta(seconds=GCS_RETRY_S_MAX)}
        if token := known.get(names.GCS_TOKEN):
            end_ms = known.get(names.GCS_TOKEN_EXPIRES_AT_MS)
            end = datetime.fromtimestamp(int(end_ms) / 1_000, timezone.utc) if end_ms else _NEVER
            arguments |= {"access_token": token, "credential_token_expiration": end}
        if location := known.get(names.GCS_DEFAULT_LOCATION):
            arguments["default_bucket_location"] = location
        if endpoint := known.get(names.GCS_SERVICE_HOST):
            scheme, _, host = endpoint.rpartition("://")
            arguments |= {"scheme": scheme or "https", "endpoint_override": host.rstrip("/")}
        return GcsFileSystem(**arguments)


class _MemoryFiles(FSSpecHandler):  # type: ignore[misc]
    """The in-memory files of this process, shared by all threads; each reader has its own position."""

    def __init__(self) -> None:
        from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

        super().__init__(MemoryFileSystem())

    def open_input_file(self, path: str) -> pa.NativeFile:
        return pa.BufferReader(self.fs.cat_file(path))

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)
