"""Payloads that are whole Avro files, as Danube's broker expects: the writer's schema, then its values."""

from __future__ import annotations

import functools
from collections.abc import Callable

from frazil.registry.avro.payload import ENDS_EARLY, PayloadMismatch, Walk, read_long, reporting_failures, skip_bytes
from frazil.registry.definition import Validator

MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_SCHEMA, _CODEC = b"avro.schema", b"avro.codec"
_SCHEMAS_KEPT_MAX = 8


def file_validator(walk_of: Callable[[bytes], Walk]) -> Validator:
    """`walk_of` gets the text of the writer's schema, and raises `PayloadMismatch` if the reader cannot read it."""
    kept = functools.lru_cache(_SCHEMAS_KEPT_MAX)(walk_of)

    def pass_by(payload: bytes) -> None:
        header, at = _header(payload)
        codec = header.get(_CODEC, b"null")
        if codec != b"null":
            raise PayloadMismatch(f"is a file with the codec {codec!a:.40}; send it without")
        walk = kept(header.get(_SCHEMA, b""))
        sync, at = payload[at : at + _SYNC_BYTES], at + _SYNC_BYTES
        values = 0
        while at < len(payload):
            count, at = _block(payload, at, walk)
            if payload[at : at + _SYNC_BYTES] != sync:
                raise PayloadMismatch("is a file with a block that does not end as its header says")
            values, at = values + count, at + _SYNC_BYTES
        if len(sync) != _SYNC_BYTES or values == 0:
            raise PayloadMismatch("is a file without values")

    return reporting_failures(pass_by)


def _block(payload: bytes, at: int, walk: Walk) -> tuple[int, int]:
    count, at = read_long(payload, at)
    size, at = read_long(payload, at)
    end = at + size
    if count < 0 or size < 0 or end > len(payload) or (walk.takes_bytes and count > size):
        raise PayloadMismatch(ENDS_EARLY)
    if walk.takes_bytes:
        for _ in range(count):
            at = walk.skip(payload, at, 0)
    if at != end:
        raise PayloadMismatch("is a file with a block of another size than it says")
    return count, at


def _header(payload: bytes) -> tuple[dict[bytes, bytes], int]:
    """Read the header: a map of bytes, in blocks."""
    found: dict[bytes, bytes] = {}
    at = len(MAGIC)
    while True:
        count, at = read_long(payload, at)
        if count == 0:
            return found, at
        if count < 0:
            _, at = read_long(payload, at)
        if abs(count) > len(payload):
            raise PayloadMismatch(ENDS_EARLY)
        for _ in range(abs(count)):
            key, at = _bytes(payload, at)
            found[key], at = _bytes(payload, at)


def _bytes(payload: bytes, at: int) -> tuple[bytes, int]:
    end = skip_bytes(payload, at, 0)
    _, start = read_long(payload, at)
    return payload[start:end], end
