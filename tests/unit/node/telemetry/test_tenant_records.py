"""Tenants: their records, their settings, and where requests of callers go."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from telemetry_nodes import admin, create, known, run, settings_of, started, until

from frazil.core import access
from frazil.core.access import Action
from frazil.core.errors import (
    DatasetNotFound,
    InvalidInput,
    InvalidName,
    PermissionDenied,
    QuotaExceeded,
    SecurityOff,
    TelemetryOff,
    TenantExists,
    TenantNotFound,
)
from frazil.core.names import TopicName
from frazil.core.principal import ANONYMOUS, LOCAL, Principal
from frazil.core.settings import RetentionSettings
from frazil.core.settings.telemetry import TABLES_MAX_DEFAULT, TelemetrySettings, TenantLimits
from frazil.meta.opening import open_meta
from frazil.node.node import Node
from frazil.node.telemetry.creating import create_topic
from frazil.node.telemetry.directory import TenantDirectory
from frazil.node.telemetry.opening import read_tenants
from frazil.node.telemetry.places import TenantPlace
from frazil.node.telemetry.tenants import SETTINGS, Tenant, UnreadableTenant
from frazil.telemetry.signals import Signal
from frazil.telemetry.tables import table_topic

TRACES = TopicName.parse("/acme.default/traces")


def test_a_record_is_the_same_after_it_was_stored() -> None:
    lifted = [{"source": "resource", "key": "k8s.pod.name", "column": "pod", "type": "string"}]
    tenant = Tenant("acme", 5, ("default",)).with_settings(
        {"bytes_per_second": 7, "retention": {"age_ms": 3}, "lifted": lifted, "freshness_ms": 500}
    )
    assert Tenant.decode("acme", tenant.encode()) == tenant
    assert tenant.limits == TenantLimits(bytes_per_second=7)
    assert tenant.retention == RetentionSettings(age_ms=3)
    assert tenant.with_settings({"bytes_per_second": None, "retention": None, "lifted": None}) == Tenant(
        "acme", 5, ("default",), freshness_ms=500
    )


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"created_us": 1, "datasets": 2}'])
def test_a_record_that_cannot_be_read_is_an_error(value: bytes) -> None:
    with pytest.raises(UnreadableTenant):
        Tenant.decode("acme", value)


def test_what_is_not_set_is_as_in_the_settings() -> None:
    settings = TelemetrySettings(limits=TenantLimits(datasets=3, connections=9), freshness_ms=700)
    shown = Tenant("acme", 5).with_settings({"datasets": 8}).as_dict(settings)
    assert shown["limits"] == {**dict.fromkeys(TenantLimits.model_fields), "datasets": 8}
    assert shown["effective"]["limits"] | {"datasets": 8, "connections": 9} == shown["effective"]["limits"]
    assert shown["effective"]["freshness_ms"] == 700
    assert {*shown["limits"], *SETTINGS} >= {"retention", "lifted"}


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"bytes_per_second": 0}, "bytes_per_second"),
        ({"requests_per_second": "9"}, "requests_per_second"),
        ({"colour": 1}, "colour"),
        ({"retention": {"age_ms": -1}}, "retention.age_ms"),
        ({"freshness_ms": 1}, "freshness_ms"),
        ({"freshness_ms": True}, "freshness_ms"),
        ({"lifted": [{"source": "span", "key": "a", "column": "a"}]}, "lifted.0.source"),
        ({"lifted": [{"source": "item", "key": "", "column": "a"}]}, "lifted.0.key"),
        ({"lifted": [{"source": "item", "key": "a", "column": "_a"}]}, "lifted.0.column"),
        ({"lifted": [{"source": "item", "key": "a", "column": "a", "type": "uint"}]}, "lifted.0.type"),
        ({"lifted": [{"source": "item", "key": "a", "column": "a"}] * 2}, "lifted"),
        ({"lifted": [{"key": "a", "column": "a"}]}, "lifted.0"),
    ],
)
def test_a_wrong_setting_is_named(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Tenant("acme", 5).with_settings(given)
    assert refused.value.fields["field"] == field


@run
async def test_a_change_by_another_process_is_seen(folder: Path) -> None:
    settings = settings_of(folder)
    async with started(settings) as node:
        with contextlib.closing(open_meta(settings)) as store:
            other = TenantDirectory(store, follows=False)
            await asyncio.to_thread(other.create, Tenant("acme", 1))
            await until(lambda: there(node, "acme") is not None)
            await asyncio.to_thread(other.change, "acme", lambda one: one.with_settings({"datasets": 1}))
            await until(lambda: (there(node, "acme") or Tenant("", 0)).limits.datasets == 1)
            await asyncio.to_thread(store.delete_all, ["/tenants/acme"])
            await until(lambda: there(node, "acme") is None)


def there(node: Node, name: str) -> Tenant | None:
    assert node.tenant_parts is not None
    return node.tenant_parts.directory.get(name)


@run
async def test_the_first_request_creates_tenant_and_dataset(folder: Path) -> None:
    async with started(settings_of(folder)) as node:
        telemetry = node.telemetry(ANONYMOUS)
        assert telemetry.place(ANONYMOUS, None, None) == TenantPlace("default", "default")
        await telemetry.export(ANONYMOUS, telemetry.place(ANONYMOUS, "acme", "eu"), Signal.LOGS, b"x", 1)
        (found,) = admin(node).list()
        assert (found.name, found.datasets) == ("acme", ("eu",))


@run
async def test_only_created_tenants_are_known_if_the_settings_say_so(folder: Path) -> None:
    async with started(settings_of(folder, telemetry={"create_tenants": False})) as node:
        telemetry = node.telemetry(ANONYMOUS)
        with pytest.raises(TenantNotFound):
            telemetry.place(ANONYMOUS, "acme", None)
        with pytest.raises(TenantNotFound):
            await telemetry.export(ANONYMOUS, TenantPlace("acme", "default"), Signal.LOGS, b"x", 1)
        await create(node, "acme")
        await telemetry.export(ANONYMOUS, telemetry.place(ANONYMOUS, "acme", None), Signal.LOGS, b"x", 1)


@run
async def test_datasets_are_limited(folder: Path) -> None:
    async with started(settings_of(folder)) as node:
        await create(node, "acme", datasets=2)
        telemetry = node.telemetry(ANONYMOUS)
        for dataset in ("a", "b"):
            await telemetry.export(ANONYMOUS, TenantPlace("acme", dataset), Signal.LOGS, b"x", 1)
        with pytest.raises(QuotaExceeded) as refused:
            await telemetry.export(ANONYMOUS, TenantPlace("acme", "c"), Signal.LOGS, b"x", 1)
        assert refused.value.fields["quota"] == "datasets"
        assert [one for one in node.topic_names(ANONYMOUS) if "acme.c" in one] == []
        await telemetry.export(ANONYMOUS, TenantPlace("acme", "a"), Signal.TRACES, b"x", 1)


@run
async def test_tables_are_limited(folder: Path) -> None:
    async with started(settings_of(folder)) as node:
        await create(node, "acme", tables=4)
        telemetry, schema = node.telemetry(ANONYMOUS), pa.schema([("x", pa.int64())])

        async def made(place: TenantPlace, table: str) -> None:
            await create_topic(node, ANONYMOUS, place, table_topic(*place, table), schema, telemetry.admit)

        eu, us = TenantPlace("acme", "eu"), TenantPlace("acme", "us")
        await telemetry.export(ANONYMOUS, eu, Signal.LOGS, b"x", 1)  # `logs` and `logs__errors`
        await made(eu, "one")
        with pytest.raises(QuotaExceeded, match="tenant:acme has reached its quota tables = 4"):
            await telemetry.export(ANONYMOUS, us, Signal.TRACES, b"x", 1)
        assert there(node, "acme").datasets == ("eu",)
        found = await asyncio.gather(*(made(us, f"more{number}") for number in range(5)), return_exceptions=True)
        assert [type(one) for one in found].count(QuotaExceeded) == 4
        await made(eu, "one")  # it exists
        await asyncio.to_thread(admin(node).change, "acme", {"tables": 5})
        await made(eu, "two")


def test_tables_are_limited_unless_the_settings_say_otherwise() -> None:
    for default, applies in ((None, TABLES_MAX_DEFAULT), (7, 7)):
        limits = Tenant("acme", 5).limits_over(TenantLimits(tables=default, datasets=2))
        assert (limits.tables, limits.datasets) == (applies, 2)
    assert Tenant("acme", 5).with_settings({"tables": 9}).limits_over(TenantLimits(tables=7)).tables == 9


@run
async def test_topics_have_the_retention_of_their_tenant_also_when_it_changes(folder: Path) -> None:
    async with started(settings_of(folder)) as node:
        await create(node, "acme", retention={"age_ms": 90_000})
        await node.telemetry(ANONYMOUS).export(ANONYMOUS, TenantPlace("acme", "default"), Signal.TRACES, b"x", 1)
        assert node.topics(LOCAL).retention(TRACES) == RetentionSettings(age_ms=90_000)
        await asyncio.to_thread(admin(node).change, "acme", {"retention": {"bytes": 5_000}})
        await until(lambda: node.topics(LOCAL).retention(TRACES) == RetentionSettings(bytes=5_000))


@run
async def test_a_tenant_is_created_once(folder: Path) -> None:
    async with started(settings_of(folder)) as node:
        await create(node, "acme")
        with pytest.raises(TenantExists):
            await create(node, "acme")
        for name in ("Acme", "a.b", "", "-a", "a" * 61, "a/b"):
            with pytest.raises(InvalidName):
                await create(node, name)
        with pytest.raises(TenantNotFound):
            admin(node).describe("other")
        with pytest.raises(TenantNotFound):
            admin(node).change("other", {"datasets": 1})


@run
async def test_without_telemetry_there_are_no_tenants(folder: Path) -> None:
    async with started(settings_of(folder, telemetry={"enabled": False})) as node:
        with pytest.raises(TelemetryOff):
            admin(node)


@run
async def test_without_security_there_are_no_keys(folder: Path) -> None:
    async with started(settings_of(folder)) as node:
        assert await create(node, "acme") is ANONYMOUS
        with pytest.raises(SecurityOff):
            admin(node).rotate_key("acme")


# --- with security


@run
async def test_a_key_of_one_tenant_needs_no_header_and_acts_for_no_other(folder: Path) -> None:
    async with started(settings_of(folder, secured=True)) as node:
        acme, bank = await create(node, "acme"), await create(node, "bank")
        telemetry = node.telemetry(acme)
        assert telemetry.place(acme, None, None) == TenantPlace("acme", "default")
        assert telemetry.place(acme, "acme", "eu") == TenantPlace("acme", "eu")
        assert telemetry.place(bank, None, None) == TenantPlace("bank", "default")
        errors = []
        for name in ("bank", "nobody"):
            with pytest.raises(PermissionDenied) as refused:
                telemetry.place(acme, name, None)
            errors.append(refused.value.as_dict())
            with pytest.raises(PermissionDenied):
                await telemetry.export(acme, TenantPlace(name, "default"), Signal.LOGS, b"x", 1)
        assert {**errors[0], "message": "", "resource": ""} == {**errors[1], "message": "", "resource": ""}
        assert errors[0]["message"].replace("bank", "nobody") == errors[1]["message"]
        await telemetry.export(acme, TenantPlace("acme", "default"), Signal.LOGS, b"x", 1)


@run
async def test_a_key_of_a_tenant_sees_no_schemas_of_others(folder: Path) -> None:
    async with started(settings_of(folder, secured=True)) as node:
        acme = await create(node, "acme")
        assert node.gate.allows(acme, Action.DESCRIBE, access.schema("/acme.default/orders"))
        for subject in ("/bank.default/orders", "orders"):
            assert not node.gate.allows(acme, Action.DESCRIBE, access.schema(subject))


@run
async def test_a_key_of_several_tenants_names_one(folder: Path) -> None:
    async with started(settings_of(folder, secured=True)) as node:
        acme, _ = await create(node, "acme"), await create(node, "bank")
        await asyncio.to_thread(node.bindings(LOCAL).add, acme.name, "tenant", "/bank.*/*")
        telemetry = node.telemetry(acme)
        with pytest.raises(InvalidInput) as refused:
            telemetry.place(acme, None, None)
        assert refused.value.fields["field"] == "x-frazil-tenant"
        assert telemetry.place(acme, "bank", None) == TenantPlace("bank", "default")
        assert telemetry.place(acme, "acme", None) == TenantPlace("acme", "default")


@run
async def test_rights_elsewhere_do_not_make_it_another_tenants(folder: Path) -> None:
    async with started(settings_of(folder, secured=True)) as node:
        acme = await create(node, "acme")
        await asyncio.to_thread(node.bindings(LOCAL).add, acme.name, "reader", "/shared/*")
        assert node.telemetry(acme).place(acme, None, None) == TenantPlace("acme", "default")
        await asyncio.to_thread(node.bindings(LOCAL).add, acme.name, "reader", "*")
        with pytest.raises(InvalidInput):
            node.telemetry(acme).place(acme, None, None)


@run
async def test_who_may_act_for_all_learns_which_tenants_are_missing(folder: Path) -> None:
    async with started(settings_of(folder, secured=True)) as node:
        with pytest.raises(TenantNotFound):
            node.telemetry(LOCAL).place(LOCAL, "nobody", None)
        with pytest.raises(PermissionDenied):
            node.telemetry(LOCAL).place(Principal("jwt:somebody"), "nobody", None)


@run
async def test_a_rotated_key_is_of_the_same_tenant(folder: Path) -> None:
    async with started(settings_of(folder, secured=True)) as node:
        acme = await create(node, "acme")
        made = await asyncio.to_thread(admin(node).rotate_key, "acme")
        assert await known(node, made["key"]) == acme
        assert admin(node).describe("acme")["keys"] == [made["id"]]
        await asyncio.to_thread(node.keys(LOCAL).revoke, made["id"])
        again = await asyncio.to_thread(admin(node).rotate_key, "acme")
        assert again["id"] != made["id"]
        assert node.telemetry(LOCAL).place(await known(node, again["key"]), None, None) == TenantPlace(
            "acme", "default"
        )


@run
async def test_who_reads_names_a_dataset_that_is_there(folder: Path) -> None:
    async with started(settings_of(folder, secured=True)) as node:
        acme, bank = await create(node, "acme"), await create(node, "bank")
        telemetry = node.telemetry(acme)
        await telemetry.export(acme, TenantPlace("acme", "eu"), Signal.LOGS, b"x", 1)
        assert telemetry.existing(acme, None, "eu") == TenantPlace("acme", "eu")
        with pytest.raises(DatasetNotFound):
            telemetry.existing(acme, None, None)
        with pytest.raises(PermissionDenied):
            telemetry.existing(bank, "acme", "eu")
        with pytest.raises(PermissionDenied):
            telemetry.existing(bank, "nobody", "eu")


@run
async def test_a_process_that_moves_rows_reads_the_tenants(folder: Path) -> None:
    settings = settings_of(folder)
    async with started(settings) as node:
        await create(node, "acme", freshness_ms=500)
        found = await asyncio.to_thread(read_tenants, settings)
        assert {name: one.freshness_ms_over(settings.telemetry) for name, one in found.items()} == {"acme": 500}
