"""Who may send telemetry, and what others get: OTLP/HTTP by every kind of credentials, and both doors before a request
is received. The calls of OTLP/gRPC are in `test_access_matrix.py` too."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest

from frazil.core.principal import LOCAL
from frazil.doors.otlp.http_door import PATHS, PROFILES
from frazil.telemetry.requests import SERVICES
from frazil.telemetry.signals import Signal, topic_of_signal
from parts.processes import pause
from parts.secured import SecuredDoors, key_id, secured
from parts.telemetry import span, spans, trace

pytestmark = pytest.mark.timeout(120)

SPANS = spans("shop", {"trace": trace(1), "id": span(1)})
PROTOBUF = {"content-type": "application/x-protobuf"}
OWN = "/acme.*/*"
REFUSED_SECONDS_MAX = 8.0
"""Less than the time that a request may take to arrive: it was not waited for."""


def run(folder: Path, work: Callable[[SecuredDoors], Awaitable[None]], **sections: Any) -> None:
    async def inside() -> None:
        async with secured(folder, **sections) as doors:
            for name in ("acme", "beta"):
                await asyncio.to_thread(tenants(doors).create, name, {}, with_key=False)
            await asyncio.wait_for(work(doors), 100)

    asyncio.run(inside())


def tenants(doors: SecuredDoors) -> Any:
    return doors.node.telemetry(LOCAL).tenants(LOCAL)


def headers(key: str | None, tenant: str | None = None) -> dict[str, str]:
    given = PROTOBUF if key is None else {**PROTOBUF, "authorization": f"Bearer {key}"}
    return given if tenant is None else {**given, "x-frazil-tenant": tenant}


async def post(
    doors: SecuredDoors, key: str | None, tenant: str | None = "acme", path: str = "/v1/traces", **given: Any
) -> httpx.Response:
    async with httpx.AsyncClient(base_url=doors.otlp_http, timeout=30) as client:
        sent = {**headers(key, tenant), **given.pop("headers", {})}
        return await client.post(path, content=given.pop("content", SPANS), headers=sent)


def stored(doors: SecuredDoors, tenant: str) -> list[bytes]:
    name = str(topic_of_signal(tenant, "default", Signal.TRACES))
    if name not in doors.node.storage.topics():
        return []
    batches = doors.node.storage.topic(name, create=False).read_batches()
    return [one for batch in batches for one in batch.column("request").to_pylist()]


def test_only_a_sender_with_the_right_passes_over_http_and_the_others_change_nothing(tmp_path: Path) -> None:
    async def work(doors: SecuredDoors) -> None:
        right, revoked = await doors.key(("tenant", OWN)), await doors.key(("tenant", OWN))
        expired = await doors.key(("tenant", OWN), lifetime_ms=1)
        bare, elsewhere = await doors.key(), await doors.key(("tenant", "/beta.*/*"))
        reading = await doors.key(("reader", OWN))
        assert (await post(doors, revoked, content=b"")).status_code == 200
        await doors.revoke(revoked)
        wrong = right[:-1] + ("a" if right[-1] != "a" else "b")
        for path in (*PATHS, PROFILES):
            for key in (None, wrong, expired, revoked):
                answer = await post(doors, key, path=path)
                assert answer.status_code == 401, (path, key)
                assert answer.headers["www-authenticate"] == "Bearer"
        for path in PATHS:
            for key in (bare, elsewhere, reading):
                there, absent = [await post(doors, key, name, path) for name in ("acme", "none")]
                assert (there.status_code, absent.status_code) == (403, 403), path
                assert there.content.replace(b"acme", b"none") == absent.content
        assert doors.node.storage.topics() == []
        assert (await post(doors, right, path=PROFILES)).status_code == 501
        for path in PATHS:
            assert (await post(doors, right, path=path, content=b"")).status_code == 200
        assert (await post(doors, right)).status_code == 200
        assert stored(doors, "acme") == [SPANS]

    run(tmp_path, work)


def test_a_key_decides_the_tenant_whatever_the_header_says(tmp_path: Path) -> None:
    async def work(doors: SecuredDoors) -> None:
        own, both = await doors.key(("tenant", OWN)), await doors.key(("tenant", OWN), ("tenant", "/beta.*/*"))
        assert (await post(doors, own, None)).status_code == 200
        for name in ("beta", "none"):
            assert (await post(doors, own, name)).status_code == 403
        for name in ("acme.", "ACME", "acme/", "../acme", "acme.*", "*", "acme%2e", "a" * 300):
            assert (await post(doors, own, name)).status_code == 400, name
        assert (await post(doors, both, None)).status_code == 400  # which of them?
        assert (await post(doors, both, "beta")).status_code == 200
        assert (stored(doors, "acme"), stored(doors, "beta")) == ([SPANS], [SPANS])

    run(tmp_path, work)


def test_nothing_of_a_request_is_received_before_its_sender_may_send_it(tmp_path: Path) -> None:
    """Neither a body over HTTP, nor a message over gRPC."""

    async def nothing() -> AsyncIterator[bytes]:
        await asyncio.sleep(60)
        yield b""

    async def over_grpc(doors: SecuredDoors, key: str | None) -> grpc.StatusCode:
        channel: Any = doors.channels["otlp"]
        metadata = [] if key is None else [("authorization", f"Bearer {key}")]
        call = channel.stream_unary(f"/{SERVICES[Signal.TRACES]}/Export")(
            nothing(), metadata=[("x-frazil-tenant", "acme"), *metadata], timeout=30
        )
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await asyncio.wait_for(call, REFUSED_SECONDS_MAX)
        return refused.value.code()

    async def over_http(doors: SecuredDoors, key: str | None) -> bytes:
        host, port = doors.otlp_http.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        lines = [f"{name}: {value}" for name, value in headers(key, "acme").items()]
        head = "\r\n".join(["POST /v1/traces HTTP/1.1", "host: localhost", "content-length: 8000000", *lines])
        writer.write(head.encode() + b"\r\n\r\n")
        try:
            return await asyncio.wait_for(reader.readline(), REFUSED_SECONDS_MAX)
        finally:
            writer.close()

    async def work(doors: SecuredDoors) -> None:
        bare = await doors.key()
        assert await over_grpc(doors, None) is grpc.StatusCode.UNAUTHENTICATED
        assert await over_grpc(doors, bare) is grpc.StatusCode.PERMISSION_DENIED
        assert b" 401 " in await over_http(doors, None)
        assert b" 403 " in await over_http(doors, bare)
        bomb = {"content": gzip.compress(bytes(64 << 20), 1), "headers": {"content-encoding": "gzip"}}
        assert (await post(doors, None, **bomb)).status_code == 401
        assert doors.otlp._intake.budget.used_bytes == 0

    run(tmp_path, work)


def test_a_used_up_quota_is_told_before_a_body_is_received(tmp_path: Path) -> None:
    async def work(doors: SecuredDoors) -> None:
        key = await doors.key(("tenant", OWN))
        await asyncio.to_thread(tenants(doors).change, "acme", {"requests_per_second": 1})
        pause(1)  # effective within a second
        answers = [await post(doors, key) for _ in range(4)]
        refused = [one for one in answers if one.status_code != 200]
        assert refused
        assert {one.status_code for one in refused} == {429}
        assert all(int(one.headers["retry-after"]) >= 1 for one in refused)
        assert len(stored(doors, "acme")) == 4 - len(refused)

    run(tmp_path, work)


def test_a_revoked_key_is_refused_on_a_connection_that_is_open(tmp_path: Path) -> None:
    async def work(doors: SecuredDoors) -> None:
        key = await doors.key(("tenant", OWN))
        async with httpx.AsyncClient(base_url=doors.otlp_http, headers=headers(key, "acme"), timeout=30) as client:
            assert (await client.post("/v1/traces", content=SPANS)).status_code == 200
            await doors.revoke(key)
            assert (await client.post("/v1/traces", content=SPANS)).status_code == 401

    run(tmp_path, work)


def test_the_audit_log_has_a_refused_sender_with_its_address(tmp_path: Path) -> None:
    async def work(doors: SecuredDoors) -> None:
        bare = await doors.key()
        await post(doors, bare)
        channel: Any = doors.channels["otlp"]
        metadata = [("x-frazil-tenant", "acme"), ("authorization", f"Bearer {bare}")]
        with pytest.raises(grpc.aio.AioRpcError):
            await channel.unary_unary(f"/{SERVICES[Signal.LOGS]}/Export")(b"", metadata=metadata, timeout=30)
        bares.append(bare)

    bares: list[str] = []
    run(tmp_path, work)
    lines = map(json.loads, (tmp_path / "audit.log").read_text().splitlines())
    found = [one for one in lines if one["principal"] == f"key:{key_id(bares[0])}"]
    assert [(one["call"], one["action"], one["allowed"]) for one in found] == [
        ("/v1/traces", "produce", False),
        ("Export", "produce", False),
    ]
    assert all("127.0.0.1" in one["from"] for one in found)
