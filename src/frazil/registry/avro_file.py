"""Payloads that are whole Avro files, as the real broker wants them: the schema that wrote them, then its values."""

from __future__ import annotations

import functools
from collections.abc import Callable

from frazil.registry.avro_payload import ENDS_EARLY, Misfit, Walk, read_long, skip_bytes, telling
from frazil.registry.definition import Validator

MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_SCHEMA, _CODEC = b"avro.schema", b"avro.codec"
_SCHEMAS_KEPT_MAX = 8


def file_validator(walk_of: Callable[[bytes], Walk]) -> Validator:
    """`walk_of` is asked about the text of the writer's schema, and raises `Misfit` if that will not do."""
    kept = functools.lru_cache(_SCHEMAS_KEPT_MAX)(walk_of)

    def pass_by(payload: bytes) -> None:
        header, at = _header(payload)
        codec = header.get(_CODEC, b"null")
        if codec != b"null":
            raise Misfit(f"is a file with the codec {codec!a:.40}; send it without")
        walk = kept(header.get(_SCHEMA, b""))
        sync, at = payload[at : at + _SYNC_BYTES], at + _SYNC_BYTES
        values = 0
        while at < len(payload):
            count, at = _block(payload, at, walk)
            if payload[at : at + _SYNC_BYTES] != sync:
                raise Misfit("is a file with a block that does not end as its header says")
            values, at = values + count, at + _SYNC_BYTES
        if len(sync) != _SYNC_BYTES or values == 0:
            raise Misfit("is a file without values")

    return telling(pass_by)


def _block(payload: bytes, at: int, walk: Walk) -> tuple[int, int]:
    count, at = read_long(payload, at)
    size, at = read_long(payload, at)
    end = at + size
    if count < 0 or size < 0 or end > len(payload) or (walk.takes_bytes and count > size):
        raise Misfit(ENDS_EARLY)
    if walk.takes_bytes:
        for _ in range(count):
            at = walk.skip(payload, at, 0)
    if at != end:
        raise Misfit("is a file with a block of another size than it says")
    return count, at


def _header(payload: bytes) -> tuple[dict[bytes, bytes], int]:
    """A map of bytes, in blocks."""
    found: dict[bytes, bytes] = {}
    at = len(MAGIC)
    while True:
        count, at = read_long(payload, at)
        if count == 0:
            return found, at
        if count < 0:
            _, at = read_long(payload, at)
        if abs(count) > len(payload):
            raise Misfit(ENDS_EARLY)
        for _ in range(abs(count)):
            key, at = _bytes(payload, at)
            found[key], at = _bytes(payload, at)


def _bytes(payload: bytes, at: int) -> tuple[bytes, int]:
    end = skip_bytes(payload, at, 0)
    _, start = read_long(payload, at)
    return payload[start:end], end
