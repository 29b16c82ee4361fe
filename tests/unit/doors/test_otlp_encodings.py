"""Bodies in gzip and zstd: decompressed within limits of bytes and of time."""

from __future__ import annotations

import asyncio
import gzip
import random
import time

import pyarrow as pa
import pytest

from frazil.core.errors import InvalidInput, RequestTooLarge
from frazil.doors.otlp.encodings import AT_ONCE_BYTES, MEMBERS_MAX, Encodings

SIZE_MAX = 4 * 2**20
NOISE = random.Random(18).randbytes(3 * AT_ONCE_BYTES)


def zstd(content: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(content, asbytes=True))


PACK = {"gzip": gzip.compress, "zstd": zstd}


def decoded(encoding: str, body: bytes, size_max: int = SIZE_MAX) -> bytes:
    return asyncio.run(Encodings(size_max).decoded(encoding, body))


@pytest.mark.parametrize("encoding", PACK)
@pytest.mark.parametrize("size", [0, 1, AT_ONCE_BYTES - 1, AT_ONCE_BYTES, AT_ONCE_BYTES + 1, len(NOISE)])
def test_one_or_several_parts_of_any_size_are_one_content(encoding: str, size: int) -> None:
    for content in (NOISE[:size], bytes(size)):
        packed = PACK[encoding](content)
        assert decoded(encoding, packed) == content
        assert decoded(encoding, packed + PACK[encoding](b"") + packed) == content + content
        assert decoded(encoding, packed, max(1, size)) == content


@pytest.mark.parametrize("encoding", PACK)
@pytest.mark.parametrize("size", [100, AT_ONCE_BYTES, len(NOISE)])
def test_what_is_cut_or_goes_on_is_not_valid(encoding: str, size: int) -> None:
    packed = PACK[encoding](NOISE[:size])
    for body in (packed[:-1], packed[: len(packed) // 2], packed + b"rest", packed + packed[:-1]):
        with pytest.raises(InvalidInput):
            decoded(encoding, body)
    with pytest.raises(RequestTooLarge):
        decoded(encoding, packed, size - 1)


def test_members_of_gzip_are_limited_and_cost_no_more_than_their_bytes() -> None:
    empty, one = gzip.compress(b""), gzip.compress(b"x")
    assert decoded("gzip", one * MEMBERS_MAX) == b"x" * MEMBERS_MAX
    began = time.process_time()
    for body in (one * (MEMBERS_MAX + 1), empty * (8 * 2**20 // len(empty))):
        with pytest.raises(InvalidInput, match="members"):
            decoded("gzip", body)
    assert time.process_time() - began < 1


def test_a_member_of_many_empty_blocks_is_decompressed_beside_the_loop() -> None:
    """It is large and has no content: how much comes out does not limit how long it takes."""
    body = gzip.compress(b"")[:10] + b"\x00\x00\x00\xff\xff" * AT_ONCE_BYTES + b"\x03\x00" + bytes(8)

    async def work() -> list[str]:
        order: list[str] = []

        async def decode() -> None:
            assert await Encodings(SIZE_MAX).decoded("gzip", body) == b""
            order.append("decoded")

        async def other() -> None:
            order.append("other")

        await asyncio.gather(decode(), other())
        return order

    assert asyncio.run(work()) == ["other", "decoded"]
