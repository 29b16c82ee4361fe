"""Content encodings of bodies over HTTP: gzip and zstd, decompressed within a limit."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import pyarrow as pa
from isal import isal_zlib

from frazil.core.errors import EncodingRefused, InvalidInput, RequestTooLarge

KNOWN = "gzip, zstd"
AT_ONCE_BYTES = 256 * 1024
"""So much is decompressed on the event loop; the rest of a larger body in a thread."""
_AT_ONCE_MAX = 2
"""Larger bodies that are decompressed at once: until it is done, their memory is beyond the budget."""
_STEP_BYTES = 1024 * 1024
_GZIP_BITS = 31
_GzipError: Any = isal_zlib.error
_SETTING = "telemetry.otlp.request_bytes_max"


class _Reader(Protocol):
    """Reads what a body decompresses to; an empty result is its end."""

    def read(self, size: int) -> bytes: ...


class Encodings:
    """Used on one event loop."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._turns = asyncio.Semaphore(_AT_ONCE_MAX)

    async def decoded(self, encoding: str, body: bytes) -> bytes:
        """Return the content of a body; raises `EncodingRefused`, `RequestTooLarge`, and `InvalidInput` for what is no
        such encoding."""
        if encoding in ("", "identity"):
            return body
        make = _READERS.get(encoding)
        if make is None:
            raise EncodingRefused("content-encoding", encoding, KNOWN)
        if not body:
            raise _invalid(encoding)
        reader = make(body)
        parts = [_read(reader, encoding, min(AT_ONCE_BYTES, self._size_max))]
        if len(parts[0]) == AT_ONCE_BYTES:
            async with self._turns:
                await asyncio.to_thread(self._read_rest, reader, encoding, parts)
        elif len(parts[0]) == self._size_max:
            self._read_rest(reader, encoding, parts)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_rest(self, reader: _Reader, encoding: str, parts: list[bytes]) -> None:
        size = len(parts[0])
        while part := _read(reader, encoding, min(_STEP_BYTES, self._size_max + 1 - size)):
            size += len(part)
            if size > self._size_max:
                raise RequestTooLarge("the request has, decompressed,", "bytes", _SETTING, self._size_max)
            parts.append(part)


def _read(reader: _Reader, encoding: str, size: int) -> bytes:
    """Read so much, or up to the end."""
    found = bytearray()
    try:
        while len(found) < size and (part := reader.read(size - len(found))):
            found += part
    except (OSError, EOFError, _GzipError):
        raise _invalid(encoding) from None
    return bytes(found)


def _invalid(encoding: str) -> InvalidInput:
    return InvalidInput(f"the body is not valid {encoding}", field="content-encoding")


class _Gzip:
    """One or several members of gzip."""

    def __init__(self, body: bytes) -> None:
        self._left = body
        self._member: Any = isal_zlib.decompressobj(_GZIP_BITS)

    def read(self, size: int) -> bytes:
        while True:
            found: bytes = self._member.decompress(self._left, size)
            if self._member.eof:
                self._left = self._member.unused_data
                if self._left:
                    self._member = isal_zlib.decompressobj(_GZIP_BITS)
            else:
                self._left = self._member.unconsumed_tail
            if found:
                return found
            if not self._left:
                if not self._member.eof:
                    raise EOFError
                return b""


def _zstd(body: bytes) -> _Reader:
    reader: _Reader = pa.CompressedInputStream(pa.BufferReader(body), "zstd")
    return reader


_READERS = {"gzip": _Gzip, "zstd": _zstd}
