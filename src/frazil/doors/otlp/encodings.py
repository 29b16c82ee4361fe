"""Content encodings of bodies over HTTP: gzip and zstd, decompressed within a limit."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import pyarrow as pa
from isal import isal_zlib

from frazil.core.errors import EncodingRefused, InvalidInput, RequestTooLarge

KNOWN = "gzip, zstd"
AT_ONCE_BYTES = 256 * 1024
"""So much is decompressed on the event loop, of a body of that size; the rest, and larger bodies, in a thread."""
_AT_ONCE_MAX = 2
"""Larger bodies that are decompressed at once: until it is done, their memory is beyond the budget."""
_STEP_BYTES = 1024 * 1024
MEMBERS_MAX = 1_024
"""Of a body of gzip. Senders write one, or one for each 64 KiB; each takes time, even an empty one."""
_WINDOW_BYTES = 64 * 1024
"""How many bytes a member is given at once: the library copies those that it has not used."""
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
        reader, parts = make(body), list[bytes]()
        if len(body) <= AT_ONCE_BYTES:
            parts.append(_read(reader, encoding, min(AT_ONCE_BYTES, self._size_max)))
        if not parts or len(parts[0]) == AT_ONCE_BYTES:
            async with self._turns:
                await asyncio.to_thread(self._read_rest, reader, encoding, parts)
        elif len(parts[0]) == self._size_max:
            self._read_rest(reader, encoding, parts)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_rest(self, reader: _Reader, encoding: str, parts: list[bytes]) -> None:
        size = sum(map(len, parts))
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
        self._body = memoryview(body)
        self._at = 0
        self._members = 1
        self._member: Any = isal_zlib.decompressobj(_GZIP_BITS)

    def read(self, size: int) -> bytes:
        while not self._member.eof:
            given = self._body[self._at : self._at + _WINDOW_BYTES]
            found: bytes = self._member.decompress(given, size)
            is_ended = self._member.eof
            self._at += len(given) - len(self._member.unused_data if is_ended else self._member.unconsumed_tail)
            if is_ended and self._at < len(self._body):
                self._begin_member()
            if found:
                return found
            if not given and not is_ended:
                raise EOFError
        return b""

    def _begin_member(self) -> None:
        self._members += 1
        if self._members > MEMBERS_MAX:
            raise InvalidInput(f"the body has more than {MEMBERS_MAX} members of gzip", field="content-encoding")
        self._member = isal_zlib.decompressobj(_GZIP_BITS)


def _zstd(body: bytes) -> _Reader:
    reader: _Reader = pa.CompressedInputStream(pa.BufferReader(body), "zstd")
    return reader


_READERS = {"gzip": _Gzip, "zstd": _zstd}
