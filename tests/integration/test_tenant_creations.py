"""What sending telemetry and rows of tables creates and changes needs its own right, and is in the audit log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from frazil.core.principal import LOCAL
from parts.secured import SecuredDoors, key_id, secured
from parts.telemetry import span, spans, trace

pytestmark = pytest.mark.timeout(120)

OWN = "/acme.*/*"
TEA = pa.RecordBatch.from_pydict({"tea": ["green"]})
WITH_CUPS = pa.RecordBatch.from_pydict({"tea": ["green"], "cups": [2]})


class World:
    def __init__(self, doors: SecuredDoors) -> None:
        self.doors = doors
        self.tenants = doors.node.telemetry(LOCAL).tenants(LOCAL)

    def put(self, key: str, batch: pa.RecordBatch) -> None:
        """Put into the table `orders` of the dataset `eu`."""
        headers = [(b"authorization", f"Bearer {key}".encode()), (b"x-frazil-tenant", b"acme")]
        options = fl.FlightCallOptions(headers=headers, timeout=30)
        with fl.connect(self.doors.flight.address) as client:
            writer, answers = client.do_put(fl.FlightDescriptor.for_path("eu", "orders"), batch.schema, options)
            with writer:
                writer.write_batch(batch)
                answers.read()

    def send(self, key: str) -> int:
        """Send spans to the dataset `eu`; returns the status."""
        headers = {"authorization": f"Bearer {key}", "content-type": "application/x-protobuf"}
        headers |= {"x-frazil-tenant": "acme", "x-frazil-dataset": "eu"}
        body = spans("shop", {"trace": trace(1), "id": span(1)})
        return httpx.post(f"{self.doors.otlp_http}/v1/traces", content=body, headers=headers, timeout=30).status_code

    @property
    def state(self) -> tuple[list[str], list[str]]:
        return self.doors.node.storage.topics(), self.tenants.describe("acme")["datasets"]


def run(folder: Path, work: Callable[[World], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with secured(folder) as doors:
            world = World(doors)
            await asyncio.to_thread(world.tenants.create, "acme", {}, with_key=False)
            await asyncio.wait_for(work(world), 100)

    asyncio.run(inside())


def audited(folder: Path, key: str) -> list[tuple[Any, ...]]:
    lines = map(json.loads, (folder / "audit.log").read_text().splitlines())
    own = [one for one in lines if one["principal"] == f"key:{key_id(key)}"]
    assert all("127.0.0.1" in one["from"] for one in own)
    return [(one["call"], one["action"], one["resource"], one["allowed"]) for one in own]


def test_a_sender_without_the_right_to_create_leaves_no_topic_and_no_dataset(tmp_path: Path) -> None:
    keys: list[str] = []

    async def work(world: World) -> None:
        key = await world.doors.key(("producer", OWN))
        keys.append(key)
        assert await asyncio.to_thread(world.send, key) == 403
        with pytest.raises(fl.FlightUnauthorizedError):
            await asyncio.to_thread(world.put, key, TEA)
        assert await asyncio.to_thread(lambda: world.state) == ([], [])

    run(tmp_path, work)
    assert audited(tmp_path, keys[0]) == [
        ("/v1/traces", "create", "topic /acme.eu/traces", False),
        ("DoPut", "create", "topic /acme.eu/orders", False),
    ]


def test_what_a_tenant_creates_and_changes_by_sending_is_in_the_audit_log(tmp_path: Path) -> None:
    keys: list[str] = []

    async def work(world: World) -> None:
        key = await world.doors.key(("tenant", OWN))
        keys.append(key)
        for _ in range(2):
            assert await asyncio.to_thread(world.send, key) == 200
        for batch in (TEA, WITH_CUPS, TEA):
            await asyncio.to_thread(world.put, key, batch)
        assert await asyncio.to_thread(lambda: world.state) == (["/acme.eu/orders", "/acme.eu/traces"], ["eu"])

    run(tmp_path, work)
    assert audited(tmp_path, keys[0]) == [
        ("/v1/traces", "create", "topic /acme.eu/traces", True),
        ("DoPut", "create", "topic /acme.eu/orders", True),
        ("DoPut", "alter", "topic /acme.eu/orders", True),
    ]


def test_a_producer_adds_no_column_without_the_right_to_create_or_to_alter(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await asyncio.to_thread(world.put, await world.doors.key(("tenant", OWN)), TEA)
        topic = world.doors.node.storage.topic("/acme.eu/orders", create=False)
        before = topic.schema
        producer = await world.doors.key(("producer", OWN))
        with pytest.raises(fl.FlightUnauthorizedError, match="may not alter the topic"):
            await asyncio.to_thread(world.put, producer, WITH_CUPS)
        await asyncio.to_thread(world.put, producer, TEA)
        assert (topic.schema, topic.log.durable_end) == (before, 2)
        await asyncio.to_thread(world.put, await world.doors.key(("producer", OWN), ("operator", OWN)), WITH_CUPS)
        assert topic.schema.names == ["tea", "cups"]

    run(tmp_path, work)
