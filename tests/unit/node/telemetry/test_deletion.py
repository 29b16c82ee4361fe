"""A tenant is deleted with all that it has, nothing else is touched, and the answer proves it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from telemetry_nodes import admin, create, known, run, settings_of, started, until

from frazil.broker.delivery.assignment import Kind
from frazil.core.errors import (
    FrazilError,
    TableRefused,
    TenantExists,
    TenantInUse,
    TenantNotFound,
    Unauthenticated,
)
from frazil.core.names import TopicName
from frazil.core.principal import ANONYMOUS, LOCAL
from frazil.core.settings import Settings
from frazil.lake.catalogs.opening import open_catalog
from frazil.lake.maintenance.table_purge import TablePurge
from frazil.meta.opening import open_meta
from frazil.meta.store import MetaStore
from frazil.node.access.grants import KeyAdmin
from frazil.node.node import Node
from frazil.node.telemetry.creating import create_topic
from frazil.node.telemetry.deletion import deletion as deleting
from frazil.node.telemetry.deletion.deletion import TenantDeletion
from frazil.node.telemetry.opening import stored_tenants
from frazil.node.telemetry.places import TenantPlace
from frazil.node.topics.topics import Topics
from frazil.telemetry.signals import Signal
from parts.moving import HandMover
from parts.telemetry import records, span, spans, trace

ACME = ("acme.default", "acme.eu")


async def filled(node: Node, *tenants: str) -> None:
    """Each tenant has two datasets, with requests in the log and in tables."""
    telemetry = node.telemetry(LOCAL)
    for tenant in tenants:
        for dataset in ("default", "eu"):
            for signal in Signal:
                for number in range(3):
                    await telemetry.export(LOCAL, TenantPlace(tenant, dataset), signal, request(signal, number), 1)
    await asyncio.to_thread(move_all, node)


def request(signal: Signal, number: int) -> bytes:
    """One that becomes a row."""
    if signal is Signal.TRACES:
        return spans("shop", {"trace": trace(number + 1), "id": span(1)})
    return records("shop", {"body": f"record {number}"}) if signal is Signal.LOGS else b""


def move_all(node: Node) -> None:
    mover = HandMover(node.settings)
    for name in node.storage.topics():
        if name.endswith(("traces", "logs")):
            mover.move(node.storage.topic(name))


async def delete(node: Node, name: str, **given: Any) -> dict[str, Any]:
    return await asyncio.to_thread(admin(node).delete, name, **given)


@contextlib.contextmanager
def store_of(settings: Settings) -> Iterator[MetaStore]:
    with contextlib.closing(open_meta(settings)) as store:
        yield store


def keys(settings: Settings, word: str) -> list[str]:
    with store_of(settings) as store:
        return [entry.key for entry in store.list("/") if word in entry.key or word.encode() in entry.value]


def files(settings: Settings, word: str) -> list[str]:
    assert settings.data is not None
    return sorted(str(one) for one in settings.data.rglob("*") if word in str(one) and one.is_file())


def leave_file_of_a_failed_move(settings: Settings) -> None:
    """No table references it."""
    assert settings.data is not None
    (settings.data / "warehouse" / "acme.eu" / "logs" / "data" / "stray.parquet").write_bytes(b"rows")


@run
async def test_nothing_of_a_deleted_tenant_is_left_and_others_keep_all(folder: Path) -> None:
    settings = settings_of(folder, secured=True)
    async with started(settings) as node:
        acme, bank = await create(node, "acme"), await create(node, "bank")
        await filled(node, "acme", "bank")
        await node.create_topic(acme, TopicName.parse("/acme.default/own"))
        await node.subscribe(acme, "/acme.default/own", "sub", Kind.SHARED, "consumer")
        await asyncio.to_thread(node.namespaces(LOCAL).create, "acme.empty")
        schema = ("/acme.default/own", "json_schema", b'{"type": "object"}')
        await asyncio.to_thread(node.registry(LOCAL).register, *schema)
        await asyncio.to_thread(leave_file_of_a_failed_move, settings)
        before = files(settings, "bank")
        kept = [one for one in keys(settings, "bank") if "acme" not in one]
        report = await delete(node, "acme", force=True)
        assert report["done"]
        assert report["left"] == []
        assert {one["topic"] for one in report["topics"]} == {
            *(f"/{namespace}/{signal}" for namespace in ACME for signal in Signal),
            "/acme.default/own",
        }
        assert {one["table"] for one in report["tables"]} == {
            f"{namespace}.{name}" for namespace in ACME for name in ("traces", "logs")
        }
        assert all(one["files"] >= 3 for one in report["tables"])
        assert all(one["bytes"] > 0 for one in report["tables"])
        assert [one["id"] for one in report["keys"]] == [acme.name.removeprefix("key:")]
        assert keys(settings, "acme") == []
        assert files(settings, "acme") == []
        assert [one for one in keys(settings, "bank") if "acme" not in one] == kept
        assert files(settings, "bank") == before
        with pytest.raises(TenantNotFound):
            await delete(node, "acme")
        await node.telemetry(bank).export(bank, TenantPlace("bank", "eu"), Signal.LOGS, b"x", 1)
        await create(node, "acme")


@run
async def test_a_tenant_that_is_being_deleted_accepts_nothing(folder: Path) -> None:
    async with started(settings_of(folder)) as node:
        await create(node, "acme")
        telemetry, place = node.telemetry(ANONYMOUS), TenantPlace("acme", "default")
        await telemetry.export(ANONYMOUS, place, Signal.LOGS, b"x", 1)
        assert node.tenant_parts is not None
        await asyncio.to_thread(node.tenant_parts.directory.begin_deletion, "acme", 1)
        for signal in (Signal.LOGS, Signal.TRACES):
            with pytest.raises(TenantNotFound):
                await telemetry.export(ANONYMOUS, place, signal, b"x", 1)
        with pytest.raises(TenantNotFound):
            telemetry.place(ANONYMOUS, "acme", None)
        with pytest.raises(TenantNotFound):
            await asyncio.to_thread(admin(node).change, "acme", {"datasets": 1})


@run
async def test_a_tenant_in_use_is_deleted_only_by_force_and_never_in_part(folder: Path) -> None:
    settings = settings_of(folder)
    async with started(settings) as node:
        await create(node, "acme")
        await filled(node, "acme")
        await node.create_topic(LOCAL, TopicName.parse("/acme.default/own"))
        await node.subscribe(LOCAL, "/acme.default/own", "sub", Kind.SHARED, "consumer")
        before = keys(settings, "acme"), files(settings, "acme")
        with pytest.raises(TenantInUse) as refused:
            await delete(node, "acme")
        assert refused.value.fields["subscriptions"] == 1
        assert (keys(settings, "acme"), files(settings, "acme")) == before
        await node.telemetry(ANONYMOUS).export(ANONYMOUS, TenantPlace("acme", "eu"), Signal.LOGS, b"x", 1)


async def with_tables(folder: Path, node: Node) -> None:
    await create(node, "acme")
    await create(node, "bank")
    await filled(node, "acme", "bank")


def table_by_others(settings: Settings) -> None:
    """Make a table in a namespace of the tenant by other means."""
    _made(settings, "strange", None)


def table_within_another(settings: Settings) -> None:
    _made(settings, "metrics", f"{_bank(settings).location()}/data")


def table_around_another(settings: Settings) -> None:
    _made(settings, "metrics", _bank(settings).location().rpartition("/")[0])


def _made(settings: Settings, name: str, location: str | None) -> None:
    rows = pa.table({"n": [1, 2]})
    open_catalog(settings).create_table(("acme.default", name), rows.schema, location).append(rows)


def _bank(settings: Settings) -> Table:
    return open_catalog(settings).load_table(("bank.default", "traces"))


def table_with_files_of_another(settings: Settings) -> None:
    own = open_catalog(settings).load_table(("acme.default", "traces"))
    own.add_files([task.file.file_path for task in _bank(settings).scan().plan_files()])


def table_that_is_kept_by_its_catalog(settings: Settings) -> None:
    own = open_catalog(settings).load_table(("acme.eu", "logs"))
    with own.transaction() as change:
        change.set_properties({"gc.enabled": "false"})


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (table_by_others, "not made by Frazil"),
        (table_within_another, "is within the location of bank"),
        (table_around_another, "are below the table's own location"),
        (table_with_files_of_another, "which is not at its location"),
        (table_that_is_kept_by_its_catalog, "forbids to delete files"),
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_tables_that_are_not_the_tenants_are_refused_before_anything_is_changed(
    tmp_path: Path, spoil: Callable[[Settings], None], reason: str, force: bool
) -> None:
    @run
    async def test(folder: Path) -> None:
        settings = settings_of(folder)
        async with started(settings) as node:
            await with_tables(folder, node)
            await asyncio.to_thread(spoil, settings)
            before = keys(settings, "a"), files(settings, "/")
            with pytest.raises(TableRefused, match=reason):
                await delete(node, "acme", force=force)
            assert (keys(settings, "a"), files(settings, "/")) == before

    test(tmp_path)


class PowerCut(BaseException):
    pass


STEPS = [
    (deleting, "delete_grants"),
    (TenantDeletion, "delete_own_topics"),
    (TenantDeletion, "_delete_topic"),
    (TenantDeletion, "_purge_tables"),
    (TablePurge, "purge"),
    (TablePurge, "_remove_all"),
    (TablePurge, "drop_namespaces"),
    (deleting, "removable"),
    (TenantDeletion, "_left"),
]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("owner", "step"), STEPS, ids=[step for _, step in STEPS])
def test_a_deletion_that_was_interrupted_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, step: str, after: bool
) -> None:
    actual = getattr(owner, step)
    calls = 0

    def cut(*given: Any, **named: Any) -> Any:
        """The second call is the last of the process; of those that are made once, the first."""
        nonlocal calls
        calls += 1
        if calls < (2 if step in ("_delete_topic", "purge", "_remove_all") else 1):
            return actual(*given, **named)
        if after:
            actual(*given, **named)
        raise PowerCut

    @run
    async def test(folder: Path) -> None:
        settings = settings_of(folder, secured=True)
        async with started(settings) as node:
            await with_tables(folder, node)
            kept = files(settings, "bank")
            monkeypatch.setattr(owner, step, cut)
            with pytest.raises(PowerCut):
                await delete(node, "acme")
            monkeypatch.setattr(owner, step, actual)
        async with started(settings) as node:
            with pytest.raises(TenantExists) as refused:
                await create(node, "acme")
            assert refused.value.fields["is_being_deleted"]
            with pytest.raises(TenantNotFound):
                await node.telemetry(LOCAL).export(LOCAL, TenantPlace("acme", "eu"), Signal.LOGS, b"x", 1)
            report = await delete(node, "acme")
            assert report["done"], report["left"]
            assert len(report["topics"]) == 6
            assert len(report["tables"]) == 4
            assert len(report["keys"]) == 1
            assert len(report["bindings"]) + len(report["keys"]) == 1
            assert keys(settings, "acme") == []
            assert files(settings, "acme") == []
            assert files(settings, "bank") == kept

    test(tmp_path)


@run
async def test_the_key_of_a_deleted_tenant_is_refused_and_one_with_other_rights_keeps_these(folder: Path) -> None:
    async with started(settings_of(folder, secured=True)) as node:
        made = await asyncio.to_thread(admin(node).create, "acme", {})
        both, secret = await asyncio.to_thread(node.keys(LOCAL).create, "both")
        for tenant in ("acme", "bank"):
            await asyncio.to_thread(node.bindings(LOCAL).add, both.principal, "tenant", f"/{tenant}.*/*")
        report = await delete(node, "acme")
        assert [one["id"] for one in report["keys"]] == [made["key"]["id"]]
        assert report["bindings"] == [{"principal": both.principal, "role": "tenant", "scope": "/acme.*/*"}]
        await until(lambda: [one.scope for one in node.bindings(LOCAL).list(both.principal)] == ["/bank.*/*"])
        await known(node, secret)
        await until(lambda: node.keys(LOCAL).list() == [both])
        with pytest.raises(Unauthenticated):
            await known(node, made["key"]["key"])


@run
async def test_what_is_left_is_told_and_the_deletion_is_not_done(folder: Path) -> None:
    """Somebody creates a topic all the time, as a broker that cannot reach the metadata store might."""
    settings = settings_of(folder)
    async with started(settings) as node:
        await create(node, "acme")
        own = node.topics(LOCAL)
        node.storage.topic("/acme.default/again")
        actual, own.delete = own.delete, lambda *_, **__: None  # type: ignore[method-assign]
        report = await delete(node, "acme", seconds_max=0.5)
        assert not report["done"]
        assert "topic /acme.default/again" in report["left"]
        own.delete = actual  # type: ignore[method-assign]
        assert (await delete(node, "acme"))["done"]


@run
async def test_a_lake_that_is_away_changes_nothing(folder: Path) -> None:
    settings = settings_of(folder)
    async with started(settings) as node:
        await create(node, "acme")
        await filled(node, "acme")
        assert settings.embedded_catalog is not None
        moved = settings.embedded_catalog.rename(folder / "elsewhere.db")
        settings.embedded_catalog.write_bytes(b"no database" * 1_000)
        before = keys(settings, "acme")
        with pytest.raises(FrazilError):
            await delete(node, "acme", force=True)
        assert keys(settings, "acme") == before
        moved.rename(settings.embedded_catalog)
        assert (await delete(node, "acme"))["done"]


def test_a_tenant_of_a_folder_without_a_server_is_deleted(tmp_path: Path) -> None:
    @run
    async def fill(folder: Path) -> None:
        async with started(settings_of(folder)) as node:
            await with_tables(folder, node)

    fill(tmp_path)
    settings = settings_of(tmp_path)
    kept = files(settings, "bank")
    with stored_tenants(settings) as tenants:
        assert [one.name for one in tenants.list()] == ["acme", "bank"]
        report = tenants.delete("acme")
    assert report["done"], report["left"]
    assert keys(settings, "acme") == []
    assert files(settings, "acme") == []
    assert files(settings, "bank") == kept


def test_a_deletion_that_another_call_has_ended_leaves_the_next_tenant_of_the_name_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two calls at once: the other one ends, and a sender creates the tenant again, while this one goes on."""
    actual = TenantDeletion._delete_topic

    @run
    async def test(folder: Path) -> None:
        settings, loop = settings_of(folder), asyncio.get_running_loop()
        async with started(settings) as node:
            await with_tables(folder, node)

            async def again() -> None:
                for dataset in ("default", "eu"):
                    for signal in Signal:
                        await node.telemetry(ANONYMOUS).export(
                            ANONYMOUS, TenantPlace("acme", dataset), signal, request(signal, 7), 1
                        )
                await asyncio.to_thread(move_all, node)

            def delete_topic(*given: Any) -> bool:
                is_gone = actual(*given)
                monkeypatch.setattr(TenantDeletion, "_delete_topic", actual)
                assert admin(node).delete("acme")["done"]
                asyncio.run_coroutine_threadsafe(again(), loop).result()
                return is_gone

            monkeypatch.setattr(TenantDeletion, "_delete_topic", delete_topic)
            with pytest.raises(TenantNotFound):
                await delete(node, "acme")
            assert {str(one) for one in node.topic_names(LOCAL) if "acme" in str(one)} == {
                f"/{namespace}/{signal}" for namespace in ACME for signal in Signal
            }
            for namespace in ACME:
                for table in ("traces", "logs"):
                    assert len(open_catalog(settings).load_table((namespace, table)).scan().to_arrow()) == 1
            assert (await delete(node, "acme"))["done"]
            assert keys(settings, "acme") == []

    test(tmp_path)


@pytest.mark.parametrize("rotates", [False, True])
def test_no_key_outlives_the_tenant_that_is_deleted_while_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rotates: bool
) -> None:
    """It would have the rights of a key of the next tenant of that name."""
    actual = KeyAdmin.create

    @run
    async def test(folder: Path) -> None:
        settings = settings_of(folder, secured=True)
        async with started(settings) as node:

            def made(*given: Any) -> Any:
                found = actual(*given)
                monkeypatch.setattr(KeyAdmin, "create", actual)
                assert admin(node).delete("acme")["done"]
                return found

            if rotates:
                await asyncio.to_thread(admin(node).create, "acme", {}, with_key=False)
            monkeypatch.setattr(KeyAdmin, "create", made)
            make = admin(node).rotate_key if rotates else partial(admin(node).create, given={})
            with pytest.raises(TenantNotFound):
                await asyncio.to_thread(make, "acme")
            assert keys(settings, "acme") == []

    test(tmp_path)


def test_a_topic_goes_with_its_tenant_also_if_its_creator_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream ends while its table is created, and the tenant is deleted before the topic is there."""
    actual, name, schema = Topics.create, TopicName.parse("/acme.default/orders"), pa.schema([("x", pa.int64())])

    @run
    async def test(folder: Path) -> None:
        loop, begun, made, goes_on = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event(), threading.Event()

        def slow(*given: Any, **named: Any) -> Any:
            loop.call_soon_threadsafe(begun.set)
            goes_on.wait(30)
            found = actual(*given, **named)
            loop.call_soon_threadsafe(made.set)
            return found

        async with started(settings_of(folder)) as node:
            await create(node, "acme")
            monkeypatch.setattr(Topics, "create", slow)
            place, admit = TenantPlace("acme", "default"), node.telemetry(ANONYMOUS).admit
            creating = asyncio.create_task(create_topic(node, ANONYMOUS, place, name, schema, admit))
            await begun.wait()
            creating.cancel()
            await asyncio.wait([creating])
            assert creating.cancelled()
            assert (await delete(node, "acme"))["done"]
            goes_on.set()
            await made.wait()
            async with asyncio.timeout(20):
                await until(lambda: str(name) not in map(str, node.topic_names(LOCAL)))
            assert files(node.settings, "acme.default/orders") == []

    test(tmp_path)
