"""OTLP with security: keys of tenants, of others, and of nobody."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from frazil.core.principal import LOCAL
from frazil.doors.otlp.statuses import DETAILS, retry_after_ms
from frazil.telemetry.requests import SERVICES
from frazil.telemetry.signals import Signal
from parts.otlp_doors import PROTOBUF, Reply
from parts.secured import SecuredDoors, secured
from parts.telemetry import span, spans, trace

pytestmark = pytest.mark.timeout(120)

GOOD = spans("shop", {"trace": trace(1), "id": span(1)})
OK, DENIED, UNKNOWN = grpc.StatusCode.OK, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED
HTTP = {OK: 200, DENIED: 403, UNKNOWN: 401, grpc.StatusCode.INVALID_ARGUMENT: 400, grpc.StatusCode.NOT_FOUND: 404}


async def tenant_key(doors: SecuredDoors, name: str, **given: Any) -> str:
    made = await asyncio.to_thread(doors.node.telemetry(LOCAL).tenants(LOCAL).create, name, given)
    return str(made["key"]["key"])


async def call(doors: SecuredDoors, key: str | None, **headers: str) -> Reply:
    method: Any = doors.channels["otlp"].unary_unary(f"/{SERVICES[Signal.TRACES]}/Export")
    try:
        await method(GOOD, metadata=[*_given(key, headers).items()], timeout=20)
    except grpc.aio.AioRpcError as error:
        details = dict(error.trailing_metadata() or ()).get(DETAILS)
        return Reply(error.code(), error.details() or "", None if details is None else retry_after_ms(details))
    return Reply(OK)


async def post(doors: SecuredDoors, key: str | None, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        where = f"{doors.otlp_http}/v1/traces"
        return await client.post(where, content=GOOD, headers={**PROTOBUF, **_given(key, headers)}, timeout=20)


def _given(key: str | None, headers: dict[str, str]) -> dict[str, str]:
    named = {f"x-frazil-{name}": value for name, value in headers.items()}
    return named | ({} if key is None else {"authorization": f"Bearer {key}"})


async def both(doors: SecuredDoors, key: str | None, **headers: str) -> Reply:
    """Send over both doors, which must agree."""
    reply, answer = await call(doors, key, **headers), await post(doors, key, **headers)
    assert answer.status_code == HTTP[reply.code], (reply, answer)
    assert reply.message.encode() in answer.content
    return reply


def test_a_key_sends_to_its_own_tenant_alone(tmp_path: Path) -> None:
    async def work(doors: SecuredDoors) -> None:
        acme, bank = await tenant_key(doors, "acme"), await tenant_key(doors, "bank")
        collector = await doors.key(("tenant", "*"))
        stranger = await doors.key(("producer", "/shop/*"))
        assert (await both(doors, acme)).code is OK
        assert (await both(doors, bank, tenant="bank", dataset="eu")).code is OK
        assert (await both(doors, collector, tenant="bank")).code is OK
        assert (await both(doors, collector)).code is grpc.StatusCode.INVALID_ARGUMENT
        assert (await both(doors, collector, tenant="nobody")).code is grpc.StatusCode.NOT_FOUND
        for key in (None, "x", acme[:-1] + "?", "frz_aaaaaaaaaaaa_wrong"):
            assert (await both(doors, key, tenant="acme")).code is UNKNOWN, key
        told = []
        for name in ("bank", "nobody"):
            for key in (acme, stranger):
                reply = await both(doors, key, tenant=name)
                assert reply.code is DENIED
                told.append(reply.message.replace(name, "NAME"))
        assert len(set(told[::2])) == len(set(told[1::2])) == 1
        topics = sorted(str(name) for name in doors.node.storage.names())
        assert topics == ["/acme.default/traces", "/bank.default/traces", "/bank.eu/traces"]
        rows = {name: doors.node.storage.topic(name, create=False).log.durable_end for name in topics}
        assert set(rows.values()) == {2}

    run(tmp_path, work)


def test_a_quota_is_a_status_with_the_time_to_try_again_and_others_are_not_affected(tmp_path: Path) -> None:
    async def work(doors: SecuredDoors) -> None:
        acme = await tenant_key(doors, "acme", requests_per_second=2)
        bank = await tenant_key(doors, "bank")
        replies = [await call(doors, acme) for _ in range(8)]
        refused = [one for one in replies if one.code is not OK]
        assert refused
        assert all(one.code is grpc.StatusCode.RESOURCE_EXHAUSTED and one.retry_ms for one in refused)
        answers = [await post(doors, acme) for _ in range(8)]
        too_many = [one for one in answers if one.status_code == 429]
        assert too_many
        assert all(int(one.headers["retry-after"]) >= 1 for one in too_many)
        assert (await both(doors, bank)).code is OK

    run(tmp_path, work)


def test_a_body_is_not_received_before_its_sender_is_known(tmp_path: Path) -> None:
    async def work(doors: SecuredDoors) -> None:
        host, _, port = doors.otlp_http.removeprefix("http://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = "POST /v1/traces HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-protobuf\r\n"
        writer.write(f"{head}content-length: 8000000\r\nauthorization: Bearer x\r\n\r\n".encode())
        assert b" 401 " in await asyncio.wait_for(reader.readline(), 20)
        assert doors.otlp.held_bytes == 0
        writer.close()

    run(tmp_path, work)


def run(folder: Path, work: Any) -> None:
    async def inside() -> None:
        async with secured(folder) as doors:
            await asyncio.wait_for(work(doors), 100)

    asyncio.run(inside())
