"""Bad requests at the doors for OTLP: a clean status for each, nothing is stored, and others are not affected."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest

from frazil.core.settings import MIB
from frazil.telemetry.protobuf_bytes import BYTES, sized, tag, varint
from frazil.telemetry.requests import REQUESTS, SERVICES
from frazil.telemetry.signals import Signal
from parts.http2 import DATA, END_HEADERS, HEADERS, PREFACE, SETTINGS, call_of, frame
from parts.otlp_doors import OtlpDoors, Reply, otlp_doors
from parts.telemetry import span, spans, trace

GOOD = spans("shop", {"trace": trace(1), "id": span(1), "attributes": {"a": "b", "n": 5}})
INVALID = grpc.StatusCode.INVALID_ARGUMENT


def run(folder: Path, work: Callable[[OtlpDoors], Awaitable[None]], **settings: Any) -> None:
    async def inside() -> None:
        async with otlp_doors(folder, **settings) as doors:
            await asyncio.wait_for(work(doors), 100)

    asyncio.run(inside())


async def nothing_is_held(doors: OtlpDoors) -> None:
    """The status may be here before the server has given the bytes back."""
    async with asyncio.timeout(10):
        while doors.door.held_bytes:  # noqa: ASYNC110 - the door tells nobody
            await asyncio.sleep(0.001)


async def accepts_good_ones(doors: OtlpDoors) -> None:
    assert await doors.call(GOOD) == Reply(grpc.StatusCode.OK)
    assert (await doors.post(GOOD)).status_code == 200


def nested(levels: int, kind: str = "list") -> bytes:
    """A request with an attribute of lists in lists, or of maps in maps."""
    numbers = [number for _ in range(levels) for number in ((6, 1, 2) if kind == "map" else (5, 1))]
    heads, size = [], 0
    for number in reversed((1, 2, 2, 9, 2, *numbers)):
        heads.append(tag(number, BYTES) + varint(size))
        size += len(heads[-1])
    return b"".join(reversed(heads))


def nested_json(levels: int) -> bytes:
    value = '{"arrayValue":{"values":[' * levels + "{}" + "]}}" * levels
    head, end = '{"resourceSpans":[{"scopeSpans":[{"spans":[{"attributes":[{"key":"k","value":', "}]}]}]}]}"
    return f"{head}{value}{end}".encode()


def bad_requests() -> dict[str, bytes]:
    """Made when they are needed: the large ones take a second."""
    return {
        "no protobuf": b"\xff\xff\xff",
        "an end within a number": b"\x0a\xff",
        "a length beyond the end": b"\x0a\x7f\x00",
        "a length of 2^63": b"\x0a" + b"\xff" * 8 + b"\x7f",
        "a field of the number 0": b"\x02\x00",
        "a wire type that is none": b"\x0f",
        "an open group": b"\x0b",
        "text that is not UTF-8": GOOD.replace(b"shop", b"sh\xffp"),
        "lists in lists": nested(5_000),
        "maps in maps": nested(2_000, "map"),
        "a large one of garbage": b"\xff" * MIB,
        "a large one that is cut": spans("shop", *({"trace": trace(1), "id": span(1)} for _ in range(9_000)))[:-5],
        "a large one with lists in lists": nested(200_000),
    }


@pytest.mark.timeout(180)
def test_what_does_not_parse_is_refused_and_not_stored(tmp_path: Path) -> None:
    bad = bad_requests()

    async def work(doors: OtlpDoors) -> None:
        for name, body in bad.items():
            reply = await doors.call(body)
            assert (reply.code, reply.retry_ms) == (INVALID, None), name
            answer = await doors.post(body)
            assert answer.status_code == 400, name
            assert answer.headers["content-type"] == "application/x-protobuf"
            assert answer.content.startswith(b"\x08\x03\x12")
        assert doors.stored() == []
        assert doors.counts.refused == {("grpc", "invalid_input"): len(bad), ("http", "invalid_input"): len(bad)}
        await accepts_good_ones(doors)
        assert doors.stored() == [GOOD, GOOD]

    run(tmp_path, work)


def test_cut_and_flipped_requests_are_refused_or_stored_as_they_are_by_both_doors_alike(tmp_path: Path) -> None:
    rng = random.Random(18)

    async def work(doors: OtlpDoors) -> None:
        for _ in range(150):
            body = bytearray(GOOD[: rng.randrange(1, len(GOOD) + 1)])
            for _ in range(rng.randrange(3)):
                body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
            reply, answer = await doors.call(bytes(body)), await doors.post(bytes(body))
            if reply.code is grpc.StatusCode.OK:
                assert answer.status_code == 200
                request = REQUESTS[Signal.TRACES].FromString(bytes(body))
                has_spans = any(scope.spans for one in request.resource_spans for scope in one.scope_spans)
                assert not has_spans or doors.stored()[-2:] == [bytes(body)] * 2
            else:
                assert (reply.code, answer.status_code) == (INVALID, 400)

    run(tmp_path, work)


def test_what_is_odd_and_valid_is_stored(tmp_path: Path) -> None:
    many = spans("shop", {"trace": trace(1), "id": span(1), "attributes": {f"key-{n}": n for n in range(10_000)}})
    absurd = REQUESTS[Signal.TRACES]()
    one = absurd.resource_spans.add().scope_spans.add().spans.add(trace_id=b"short", span_id=bytes(99))
    one.start_time_unix_nano, one.end_time_unix_nano = 2**64 - 1, 0

    async def work(doors: OtlpDoors) -> None:
        odd = [many, absurd.SerializeToString(), nested(30), nested(25, "map")]
        for body in odd:
            assert (await doors.call(body)).code is grpc.StatusCode.OK
        assert doors.stored() == odd

    run(tmp_path, work)


def test_requests_without_items_are_accepted_and_not_stored(tmp_path: Path) -> None:
    async def work(doors: OtlpDoors) -> None:
        for signal in Signal:
            empty = REQUESTS[signal]()
            field = empty.DESCRIPTOR.fields[0].name
            getattr(empty, field).add().resource.attributes.add(key="a")
            for body in (b"", empty.SerializeToString()):
                assert (await doors.call(body, signal)).code is grpc.StatusCode.OK
                answer = await doors.post(body, signal)
                assert (answer.status_code, answer.content) == (200, b"")
            answer = await doors.post(b"{}", signal, content_type="application/json")
            assert (answer.status_code, answer.json()) == (200, {})
            assert doors.stored(signal) == []
        assert list(doors.node.storage.names()) == []

    run(tmp_path, work)


def test_wrong_json_is_refused_with_a_status_in_json(tmp_path: Path) -> None:
    async def work(doors: OtlpDoors) -> None:
        bodies = [b"", b"[]", b"{", b'{"resourceSpans": 5}', nested_json(60), nested_json(20_000), b"\xff"]
        for body in bodies:
            answer = await doors.post(body, content_type="application/json; charset=utf-8")
            assert answer.status_code == 400, body[:50]
            assert answer.headers["content-type"] == "application/json"
            assert answer.json()["code"] == 3
        assert doors.stored() == []
        good = await doors.post(nested_json(20), content_type="application/json")
        assert good.status_code == 200

    run(tmp_path, work)


def bombs(size: int) -> dict[str, bytes]:
    zeros = bytes(size)
    return {"gzip": gzip.compress(zeros, 9), "zstd": pa.Codec("zstd").compress(zeros, asbytes=True)}


def test_content_encodings_are_decompressed_within_the_limit(tmp_path: Path) -> None:
    async def work(doors: OtlpDoors) -> None:
        for encoding, body in bombs(100 * MIB).items():
            answer = await doors.post(body, content_encoding=encoding)
            assert answer.status_code == 413, encoding
            assert b"telemetry.otlp.request_bytes_max" in answer.content
        zstd = pa.Codec("zstd").compress(GOOD, asbytes=True)
        packed = {"gzip": gzip.compress(GOOD), "zstd": zstd}
        for encoding, body in packed.items():
            assert (await doors.post(body, content_encoding=encoding.upper())).status_code == 200
            for bad in (body[:-1], body[:3], b"", GOOD, body[:-3] + b"xyz", body + b"more"):
                assert (await doors.post(bad, content_encoding=encoding)).status_code == 400, (encoding, bad)
        assert (await doors.post(gzip.compress(GOOD[:9]) + gzip.compress(GOOD[9:]), content_encoding="gzip")).is_success
        assert doors.stored() == [GOOD] * 3
        for encoding in ("br", "deflate", "gzip, gzip", "x" * 500):
            answer = await doors.post(GOOD, content_encoding=encoding)
            assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "gzip, zstd"), encoding

    run(tmp_path, work)


def test_a_bomb_over_grpc_is_refused_as_too_large_for_ever(tmp_path: Path) -> None:
    async def work(doors: OtlpDoors) -> None:
        reply = await doors.call(bytes(100 * MIB), compression=grpc.Compression.Gzip)
        assert (reply.code, reply.retry_ms) == (grpc.StatusCode.RESOURCE_EXHAUSTED, None)
        await accepts_good_ones(doors)

    run(tmp_path, work)


def test_limits_of_size_and_items_are_named(tmp_path: Path) -> None:
    async def work(doors: OtlpDoors) -> None:
        six = spans("shop", *({"trace": trace(1), "id": span(n)} for n in range(6)))
        reply, answer = await doors.call(six), await doors.post(six)
        assert (reply.code, answer.status_code) == (INVALID, 413)
        assert "telemetry.otlp.items_max" in reply.message
        fat = spans("x" * 600_000, {"trace": trace(1), "id": span(1)})
        reply = await doors.call(fat)
        assert reply.code is INVALID
        assert "telemetry.otlp.item_bytes_max" in reply.message
        empty_spans = tag(1, BYTES) + sized(tag(2, BYTES) + sized((tag(2, BYTES) + b"\0") * 400_000))
        assert "items_max" in (await doors.call(empty_spans)).message
        assert "items_max" in (await doors.call((tag(1, BYTES) + b"\0") * 400_000)).message
        assert (await doors.post(bytes(MIB + 1))).status_code == 413

        async def chunks() -> Any:
            for _ in range(5):
                yield bytes(MIB // 4)

        assert (await doors.post(chunks())).status_code == 413
        assert doors.stored() == []
        await accepts_good_ones(doors)

    run(tmp_path, work, items_max=5, item_bytes_max=500_000, body_bytes_max=MIB)


def test_paths_methods_and_types_that_are_none_of_otlp_are_refused(tmp_path: Path) -> None:
    async def work(doors: OtlpDoors) -> None:
        for path in ("/", "/v1", "/v1/trace", "/v1/traces/", "/metrics", "/health/ready", "/v1/topics"):
            assert (await doors.http.post(path, content=GOOD)).status_code == 404, path
        for method in ("GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"):
            answer = await doors.http.request(method, "/v1/traces")
            assert (answer.status_code, answer.headers["allow"]) == (405, "POST"), method
        for kind in ("text/plain", "", "application/protobuf", "application/x-protobufs", "x" * 300):
            assert (await doors.post(GOOD, content_type=kind)).status_code == 415, kind
        profiles = await doors.http.post("/v1development/profiles", content=b"", headers={"content-type": "a/b"})
        assert (profiles.status_code, profiles.json()["code"]) == (501, 12)
        assert doors.stored() == []

    run(tmp_path, work)


def test_headers_that_are_wrong_are_refused(tmp_path: Path) -> None:
    async def work(doors: OtlpDoors) -> None:
        for name in ("x-frazil-tenant", "x-frazil-dataset"):
            for value in ("Upper", "a.b", "-a", "a" * 61, "é", "*"):
                assert (await doors.post(GOOD, **{name: value.encode("latin-1")})).status_code == 400, value
                if value.isascii():
                    assert (await doors.call(GOOD, headers=[(name, value)])).code is INVALID, value
            twice = [(name, "a"), (name, "b")]
            assert (await doors.call(GOOD, headers=twice)).code is INVALID
        head = b"POST /v1/traces HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-protobuf\r\n"
        both = head + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
        for wrong in (
            both,
            head + b"content-length: -1\r\n\r\n",
            head + b"content-length: 1\r\ncontent-length: 2\r\n\r\nxx",
            b"\x16\x03\x01\x02\x00" * 20 + b"\r\n\r\n",
        ):
            assert b"HTTP/1.1 400" in await doors.raw(wrong), wrong[:200]
        assert b" 200 " not in await doors.raw(head + b"x: " + b"y" * MIB + b"\r\n\r\n")
        foreign = head.replace(b"localhost", b"evil.example") + b"content-length: 0\r\nconnection: close\r\n\r\n"
        assert b"HTTP/1.1 421" in await doors.raw(foreign)
        page = head + b"origin: https://evil.example\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        assert b"HTTP/1.1 403" in await doors.raw(page)
        assert doors.stored() == []
        await accepts_good_ones(doors)

    run(tmp_path, work)


def test_a_body_that_ends_early_or_comes_slowly_leaves_nothing(tmp_path: Path) -> None:
    head = (
        b"POST /v1/traces HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-protobuf\r\nconnection: close\r\n"
    )

    async def work(doors: OtlpDoors) -> None:
        data = head + b"content-length: %d\r\n\r\n" % (len(GOOD) + 1) + GOOD
        await doors.raw(data, ends=True)
        answer = await doors.raw(data)  # the last byte never comes
        assert b"HTTP/1.1 503" in answer
        assert b"retry-after: 1\r\n" in answer
        assert doors.door.held_bytes == 0
        assert doors.stored() == []
        await accepts_good_ones(doors)

    run(tmp_path, work, receive_ms_max=300)


def test_a_request_over_grpc_that_comes_slowly_is_refused_and_holds_nothing(tmp_path: Path) -> None:
    async def work(doors: OtlpDoors) -> None:
        host, _, port = doors.grpc.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        begun = frame(HEADERS, END_HEADERS, 1, call_of(f"/{SERVICES[Signal.TRACES]}/Export"))
        part = frame(DATA, 0, 1, b"\0" + len(GOOD).to_bytes(4, "big") + GOOD[:-1])
        writer.write(PREFACE + frame(SETTINGS, 0, 0) + begun + part)
        received = b""
        while b"request was not complete" not in received:
            more = await asyncio.wait_for(reader.read(65_536), 30)
            assert more
            received += more
        writer.close()
        await nothing_is_held(doors)
        assert doors.counts.refused == {("grpc", "try_later"): 1}
        assert doors.stored() == []
        await accepts_good_ones(doors)

    run(tmp_path, work, receive_ms_max=300)


def test_senders_share_the_bytes_that_are_held_and_wait_for_their_turn(tmp_path: Path) -> None:
    async def work(doors: OtlpDoors) -> None:
        replies = await asyncio.gather(*(doors.call(GOOD) for _ in range(200)))
        assert set(replies) == {Reply(grpc.StatusCode.OK)}
        assert doors.door.held_bytes == 0
        assert len(doors.stored()) == 200

    run(tmp_path, work, request_bytes_max=MIB, body_bytes_max=MIB, held_bytes_max=4 * MIB)


def test_too_many_requests_at_once_are_refused_with_the_time_to_try_again(tmp_path: Path) -> None:
    async def work(doors: OtlpDoors) -> None:
        replies = await asyncio.gather(*(doors.call(GOOD) for _ in range(50)))
        refused = [one for one in replies if one.code is not grpc.StatusCode.OK]
        assert refused
        assert {(one.code, one.retry_ms) for one in refused} == {(grpc.StatusCode.RESOURCE_EXHAUSTED, 1_000)}
        assert len(doors.stored()) == 50 - len(refused)
        await accepts_good_ones(doors)

    run(tmp_path, work, calls_max=4)


def test_json_and_protobuf_of_one_request_are_the_same_rows(tmp_path: Path) -> None:
    parse = REQUESTS[Signal.TRACES].FromString
    (sent,) = parse(GOOD).resource_spans[0].scope_spans[0].spans
    content = {
        "resourceSpans": [{
            "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]},
            "scopeSpans": [{"spans": [{
                "traceId": trace(1).upper(), "spanId": span(1), "name": "work", "kind": 1,
                "startTimeUnixNano": str(sent.start_time_unix_nano), "endTimeUnixNano": sent.end_time_unix_nano,
                "attributes": [{"key": "a", "value": {"stringValue": "b"}}, {"key": "n", "value": {"intValue": "5"}}],
                "status": {"code": 0, "message": ""}, "somethingNew": [1, {}],
            }]}],
        }],
    }  # fmt: skip

    async def work(doors: OtlpDoors) -> None:
        for encode in (bytes, gzip.compress):
            encoding = "identity" if encode is bytes else "gzip"
            body = encode(json.dumps(content).encode())
            answer = await doors.post(body, content_type="application/json", content_encoding=encoding)
            assert (answer.status_code, answer.json()) == (200, {})
        assert [parse(one) for one in doors.stored()] == [parse(GOOD)] * 2

    run(tmp_path, work)
