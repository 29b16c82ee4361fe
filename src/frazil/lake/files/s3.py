"""S3 access through PyArrow as PyIceberg does it, but with one request instead of four for a small file.

PyIceberg starts every file as a multipart upload, and asks for the length of what it has written. A commit of a few
rows writes three small files in sequence, so their requests take most of its time.
"""

from __future__ import annotations

from typing import Any, Self

import pyarrow as pa
from pyarrow.fs import S3FileSystem
from pyiceberg import io as names
from pyiceberg.io.pyarrow import PyArrowFile
from pyiceberg.typedef import Properties
from pyiceberg.utils.properties import get_first_property_value, property_as_bool

from frazil.lake.pyiceberg_private import made_retry_strategy, resolved_s3_region

_ARGUMENTS = {
    "access_key": (names.S3_ACCESS_KEY_ID, names.AWS_ACCESS_KEY_ID),
    "secret_key": (names.S3_SECRET_ACCESS_KEY, names.AWS_SECRET_ACCESS_KEY),
    "session_token": (names.S3_SESSION_TOKEN, names.AWS_SESSION_TOKEN),
    "role_arn": (names.S3_ROLE_ARN, names.AWS_ROLE_ARN),
    "session_name": (names.S3_ROLE_SESSION_NAME, names.AWS_ROLE_SESSION_NAME),
    "endpoint_override": (names.S3_ENDPOINT,),
    "proxy_options": (names.S3_PROXY_URI,),
}
_NUMBERS = {"connect_timeout": names.S3_CONNECT_TIMEOUT, "request_timeout": names.S3_REQUEST_TIMEOUT}
_FLAGS = {"force_virtual_addressing": names.S3_FORCE_VIRTUAL_ADDRESSING, "anonymous": names.S3_ANONYMOUS}


def open_s3(properties: Properties, bucket: str | None) -> S3FileSystem:
    arguments: dict[str, Any] = {"region": _region(properties, bucket), "allow_delayed_open": True}
    for argument, known in _ARGUMENTS.items():
        if value := get_first_property_value(properties, *known):
            arguments[argument] = value
    arguments |= {argument: float(properties[name]) for argument, name in _NUMBERS.items() if properties.get(name)}
    for argument, name in _FLAGS.items():
        if properties.get(name) is not None:
            arguments[argument] = property_as_bool(properties, name, False)
    strategy = properties.get(names.S3_RETRY_STRATEGY_IMPL)
    if strategy and (made := made_retry_strategy(strategy)):
        arguments["retry_strategy"] = made
    return S3FileSystem(**arguments)


def _region(properties: Properties, bucket: str | None) -> str | None:
    """Return the configured region, or else the bucket's own."""
    given = get_first_property_value(properties, names.S3_REGION, names.AWS_REGION)
    if given is None or property_as_bool(properties, names.S3_RESOLVE_REGION, False):
        return resolved_s3_region(bucket) or given
    return str(given)


class CountedOutput(PyArrowFile):
    """A file that knows its length after it was written through `create`; otherwise it asks the store."""

    _written: _Counted | None = None

    def create(self, overwrite: bool = False) -> Any:
        self._written = _Counted(super().create(overwrite))
        return self._written

    def __len__(self) -> int:
        known = None if self._written is None else self._written.length
        return super().__len__() if known is None else known


class _Counted:
    """The interface of PyIceberg's output streams; `length` is known once the stream was closed without an error."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self.length: int | None = None

    def write(self, data: bytes) -> int:
        return int(self._stream.write(data))

    def tell(self) -> int:
        return int(self._stream.tell())

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def close(self) -> None:
        length = None if self._stream.closed else self._stream.tell()
        self._stream.close()
        self.length = length if self.length is None else self.length

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
