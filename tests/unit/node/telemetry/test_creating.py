"""Topics of a tenant that is deleted between the check that it is there and their creation."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from frazil.core.errors import TenantNotFound
from frazil.core.names import TopicName
from frazil.core.principal import ANONYMOUS, LOCAL
from frazil.node.node import Node
from frazil.node.telemetry.creating import create_topic
from frazil.node.telemetry.places import TenantPlace
from unit.node.telemetry.telemetry_nodes import admin, create, run, settings_of, started

PLACE, TOPIC = TenantPlace("acme", "eu"), TopicName.parse("/acme.eu/orders")
SCHEMA = pa.schema([("x", pa.int64())])


def names(node: Node) -> list[TopicName]:
    return node.topics(LOCAL).names()


@run
async def test_a_deletion_that_has_looked_before_finds_no_topic_behind_it(folder: Path) -> None:
    async with started(settings_of(folder)) as node:
        for recreates in (False, True):
            await create(node, "acme")

            def admit(place: TenantPlace, recreates: bool = recreates) -> Any:
                found = node.telemetry(LOCAL).admit(place)
                assert admin(node).delete("acme")["done"]
                if recreates:
                    admin(node).create("acme", {})
                return found

            with pytest.raises(TenantNotFound):
                await create_topic(node, ANONYMOUS, PLACE, TOPIC, SCHEMA, admit)
            assert await asyncio.to_thread(names, node) == []


@run
async def test_a_tenant_that_stays_keeps_its_topic(folder: Path) -> None:
    async with started(settings_of(folder)) as node:
        await create(node, "acme", retention={"age_ms": 60_000})
        for _ in range(2):  # the second one finds it
            await create_topic(node, ANONYMOUS, PLACE, TOPIC, SCHEMA, node.telemetry(LOCAL).admit)
        assert await asyncio.to_thread(names, node) == [TOPIC]
        retention = await asyncio.to_thread(node.topics(LOCAL).retention, TOPIC)
        assert retention is not None
        assert retention.age_ms == 60_000
