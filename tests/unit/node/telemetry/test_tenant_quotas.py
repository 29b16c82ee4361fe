"""Quotas of tenants: used by all principals of a tenant together, and by nobody else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from telemetry_nodes import admin, create, known, run, settings_of, started

from frazil.core.errors import QuotaExceeded
from frazil.core.names import TopicName
from frazil.core.principal import ANONYMOUS, LOCAL, Principal
from frazil.core.settings.telemetry import TenantLimits
from frazil.node.node import Node
from frazil.node.telemetry.places import TenantPlace
from frazil.node.telemetry.quotas import TenantQuotas
from frazil.node.telemetry.table_limit import TableLimit
from frazil.node.telemetry.tenants import Tenant
from frazil.telemetry.signals import Signal
from frazil.testing import FakeClock

ACME, BANK = TenantPlace("acme", "default"), TenantPlace("bank", "default")


async def second_key(node: Node, tenant: str) -> Principal:
    record, key = await asyncio.to_thread(node.keys(LOCAL).create, "another")
    await asyncio.to_thread(node.bindings(LOCAL).add, record.principal, "tenant", f"/{tenant}.*/*")
    return await known(node, key)


@run
async def test_the_keys_of_a_tenant_share_its_quotas_at_every_door(folder: Path) -> None:
    async with started(settings_of(folder, secured=True), clock=FakeClock()) as node:
        acme, bank = await create(node, "acme", requests_per_second=3, bytes_per_second=100), await create(node, "bank")
        other = await second_key(node, "acme")
        node.gate.request(acme)
        node.gate.request(other)
        node.gate.request(other)
        with pytest.raises(QuotaExceeded) as refused:
            node.gate.request(acme)
        assert refused.value.fields["principal"] == "tenant:acme"
        assert refused.value.fields["retry_after_ms"] > 0
        node.gate.transfer(acme, 60)
        node.gate.transfer(other, 40)
        with pytest.raises(QuotaExceeded):
            node.gate.transfer(other, 1)
        for _ in range(10):
            node.gate.request(bank)
            node.gate.transfer(bank, 1_000)
            node.gate.request(LOCAL)


@run
async def test_streams_of_a_tenant_are_counted_together(folder: Path) -> None:
    async with started(settings_of(folder, secured=True)) as node:
        acme = await create(node, "acme", connections=1)
        other = await second_key(node, "acme")
        with node.gate.stream(acme), pytest.raises(QuotaExceeded), node.gate.stream(other):
            pass
        with node.gate.stream(other):
            pass


@run
async def test_a_request_is_counted_once_for_its_tenant(folder: Path) -> None:
    """The door counts the request of a tenant's key; that of somebody else is counted when it is appended."""
    async with started(settings_of(folder, secured=True), clock=FakeClock()) as node:
        acme = await create(node, "acme", requests_per_second=2, bytes_per_second=300)
        telemetry = node.telemetry(acme)
        for _ in range(2):
            await telemetry.export(acme, ACME, Signal.LOGS, b"x" * 100, 1)
        await telemetry.export(acme, ACME, Signal.LOGS, b"x" * 100, 1)  # its requests are counted by doors
        with pytest.raises(QuotaExceeded) as refused:
            await telemetry.export(acme, ACME, Signal.LOGS, b"x", 1)
        assert refused.value.fields["quota"] == "bytes_per_second"
        for _ in range(2):
            node.gate.request(acme)
        with pytest.raises(QuotaExceeded):
            node.gate.request(acme)


@run
async def test_without_security_the_tenant_that_is_named_is_charged(folder: Path) -> None:
    async with started(settings_of(folder), clock=FakeClock()) as node:
        await create(node, "acme", requests_per_second=2)
        telemetry = node.telemetry(ANONYMOUS)
        for _ in range(2):
            await telemetry.export(ANONYMOUS, ACME, Signal.LOGS, b"x", 1)
        with pytest.raises(QuotaExceeded):
            await telemetry.export(ANONYMOUS, ACME, Signal.LOGS, b"x", 1)
        await telemetry.export(ANONYMOUS, BANK, Signal.LOGS, b"x", 1)
        await asyncio.to_thread(admin(node).change, "acme", {"requests_per_second": None})
        await telemetry.export(ANONYMOUS, ACME, Signal.LOGS, b"x", 1)


@run
async def test_a_limit_of_all_tenants_is_for_tenants_only(folder: Path) -> None:
    limits = {"limits": {"bytes_per_second": 10, "stored_bytes": 1}}
    async with started(settings_of(folder, telemetry=limits), clock=FakeClock()) as node:
        await create(node, "acme")
        telemetry = node.telemetry(ANONYMOUS)
        await node.create_topic(ANONYMOUS, TopicName.parse("/shop.eu/orders"))
        for _ in range(3):
            await node.publish(ANONYMOUS, "/shop.eu/orders", [b"x" * 100])
        await telemetry.export(ANONYMOUS, ACME, Signal.LOGS, b"x" * 10, 1)
        with pytest.raises(QuotaExceeded):
            await telemetry.export(ANONYMOUS, ACME, Signal.LOGS, b"x" * 10, 1)


def test_stored_bytes_are_those_of_the_logs_of_the_tenant() -> None:
    class Directory:
        def get(self, name: str) -> Tenant | None:
            return Tenant(name, 1, limits=TenantLimits(stored_bytes=100)) if name == "acme" else None

    clock, sizes = FakeClock(), {"acme": 0}
    quotas = TenantQuotas(Directory(), TenantLimits(), clock, lambda name: sizes[name])  # type: ignore[arg-type]
    charge = quotas.charge(TopicName.parse("/acme.default/logs"))
    assert charge is not None
    assert quotas.charge(TopicName.parse("/shop/orders")) is None
    charge.check()
    charge.add(99)
    charge.check()
    charge.add(1)
    with pytest.raises(QuotaExceeded) as refused:
        charge.check()
    assert refused.value.fields["quota"] == "stored_bytes"
    other = quotas.charge(TopicName.parse("/bank.default/logs"))
    assert other is not None
    other.add(1_000)
    other.check()
    quotas.close()


@run
async def test_stored_bytes_are_measured(folder: Path) -> None:
    clock = FakeClock()
    async with started(settings_of(folder), clock=clock) as node:
        await create(node, "acme", stored_bytes=150_000)
        telemetry = node.telemetry(ANONYMOUS)
        for _ in range(3):
            await telemetry.export(ANONYMOUS, ACME, Signal.LOGS, b"x" * 50_000, 1)
        with pytest.raises(QuotaExceeded):
            await telemetry.export(ANONYMOUS, ACME, Signal.TRACES, b"x", 1)
        with pytest.raises(QuotaExceeded):  # through any door
            await node.publish(ANONYMOUS, "/acme.default/logs", _row())
        await node.delete_topic(ANONYMOUS, TopicName.parse("/acme.default/logs"), force=True)
        clock.advance(2_000_000)
        await until_accepted(lambda: telemetry.export(ANONYMOUS, ACME, Signal.TRACES, b"x", 1))


async def until_accepted(send: Callable[[], Awaitable[int]]) -> None:
    """The measurement is made in a thread, which the first refused request begins."""
    while True:
        try:
            await send()
        except QuotaExceeded:
            await asyncio.sleep(0.01)
        else:
            return


def _row():  # type: ignore[no-untyped-def]
    from frazil.node.telemetry.publishing import request_batch

    return request_batch(Signal.LOGS, b"x", 1)


@run
async def test_the_next_tenant_of_a_name_begins_anew(folder: Path) -> None:
    async with started(settings_of(folder)) as node:
        telemetry = node.telemetry(ANONYMOUS)
        for _ in range(2):
            await create(node, "acme", stored_bytes=1)
            await telemetry.export(ANONYMOUS, ACME, Signal.LOGS, b"x", 1)
            with pytest.raises(QuotaExceeded):
                await telemetry.export(ANONYMOUS, ACME, Signal.LOGS, b"x", 1)
            assert (await asyncio.to_thread(admin(node).delete, "acme", force=True))["done"]


def test_a_caller_that_leaves_while_its_table_is_counted_holds_no_place() -> None:
    """Its thread goes on, and takes the place after the caller has given it back."""
    one, two = (TopicName.parse(f"/acme.default/{name}") for name in ("one", "two"))
    asked, goes_on = threading.Event(), threading.Event()

    def topics() -> list[TopicName]:
        asked.set()
        goes_on.wait(30)
        return []

    limit = TableLimit(topics)
    with ThreadPoolExecutor(1) as pool:
        with limit.place("acme", one) as place:
            taken = pool.submit(place.take, 1)
            assert asked.wait(30)
        goes_on.set()
        taken.result()
    with limit.place("acme", two) as place:
        place.take(1)
        with limit.place("acme", one) as other, pytest.raises(QuotaExceeded):
            other.take(1)
