"""Tenants of a real `frazil serve` with security, by the verbs and with their keys; and of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

import frazil
from frazil.core.names import TopicName
from frazil.core.principal import ANONYMOUS, LOCAL
from frazil.core.settings import RetentionSettings
from frazil.meta.opening import open_meta
from frazil.node.access.local_token import read_local_token
from frazil.node.node import Node
from frazil.node.telemetry.places import TenantPlace
from frazil.telemetry.signals import Signal, request_schema
from parts.cluster_nodes import cluster_nodes, cluster_settings
from parts.etcd import etcd_server
from parts.processes import pause
from parts.tenants import Secured

pytestmark = pytest.mark.timeout(180)

TRACES = "/acme.default/traces"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Secured]:
    sections = {"security": {"enabled": True}, "telemetry": {"enabled": True}}
    found = Secured(tmp_path, others=sections)
    found.start()
    try:
        yield found
        assert "Traceback" not in found.log()
    finally:
        found.kill()


def requests(count: int) -> pa.RecordBatch:
    rows = [{"request": b"request %d" % number, "items": 1} for number in range(count)]
    return pa.RecordBatch.from_pylist(rows, schema=request_schema(Signal.TRACES))


def fill(server: Secured, tenant: str, key: str, datasets: int = 2) -> None:
    with frazil.connect(server.flight, token=key) as storage:
        for number in range(datasets):
            topic = storage.topic(f"/{tenant}.d{number}/traces", schema=request_schema(Signal.TRACES))
            topic.publish_many(requests(5))


def test_a_tenant_sees_its_own_and_nothing_of_others(server: Secured) -> None:
    acme, bank = server.create("acme"), server.create("bank")
    fill(server, "acme", acme)
    fill(server, "bank", bank)
    topics = [one["topic"] for one in server.get("/v1/topics", acme).json()["items"]]
    assert topics == ["/acme.d0/traces", "/acme.d1/traces"]
    assert server.get("/v1/namespaces", acme).json()["items"] == ["acme.d0", "acme.d1"]
    assert [one["tenant"] for one in server.get("/v1/tenants", acme).json()["items"]] == ["acme"]
    assert server.get("/v1/tenants/acme", acme).json()["tenant"] == "acme"
    for path in ("/v1/tenants/{}", "/v1/topics/{}.d0/traces", "/v1/tables/{}.d0/traces"):
        there, absent = (server.get(path.format(name), acme) for name in ("bank", "nobody"))
        assert (there.status_code, absent.status_code) == (403, 403)
        assert there.text.replace("bank", "nobody") == absent.text
    refused = httpx.delete(f"{server.http}/v1/tenants/acme", headers={"authorization": f"Bearer {acme}"}, timeout=30)
    assert refused.status_code == 403
    with frazil.connect(server.flight, token=acme) as storage:
        assert storage.topics() == topics
        errors = []
        for name in ("/bank.d0/traces", "/nobody.d0/traces", "/bank.new/traces", "/acme/traces", "/acme2.x/traces"):
            with pytest.raises(frazil.PermissionDenied) as told:
                storage.topic(name, schema=request_schema(Signal.TRACES))
            errors.append(told.value.message.replace(name, "NAME"))
        assert len(set(errors)) == 1


def test_keys_rotate_and_limits_apply_while_it_runs(server: Secured) -> None:
    old = server.create("acme", "--datasets", "4")
    assert server.verb("tenants", "show", "acme")["limits"]["datasets"] == 4
    new = server.verb("tenants", "rotate-key", "acme")["key"]
    pause(1.0)
    assert server.get("/v1/whoami", old).status_code == 401
    assert server.get("/v1/whoami", new).status_code == 200
    server.verb("tenants", "limit", "acme", "--requests-per-second", "3", "--datasets", "none")
    statuses = [server.get("/v1/whoami", new) for _ in range(10)]
    refused = [one for one in statuses if one.status_code == 429]
    assert refused
    assert refused[0].json()["principal"] == "tenant:acme"
    assert int(refused[0].headers["retry-after"]) >= 1
    limits = server.verb("tenants", "list")[0]["limits"]
    assert {name: value for name, value in limits.items() if value is not None} == {"requests_per_second": 3}
    assert server.verb("tenants", "show", "nobody", code=3)["error"] == "tenant_not_found"
    assert server.verb("tenants", "create", "acme", code=1)["error"] == "tenant_exists"
    assert server.verb("tenants", "create", "Acme", code=2)["error"] == "invalid_name"
    assert server.verb("tenants", "limit", "acme", "--datasets", "0", code=2)["option"] == "--datasets"


def left(server: Secured, word: bytes) -> list[str]:
    """What the folder still has with the word: in names of files, and in the metadata store."""
    data = server.folder / "data"
    found = [str(one) for one in data.rglob("*") if word.decode() in one.name and one.is_file()]
    store = open_meta(frazil.Settings.of_folder(data))
    try:
        return found + [one.key for one in store.list("/") if word in one.key.encode() or word in one.value]
    finally:
        store.close()


def test_a_deletion_that_is_killed_goes_on_and_leaves_nothing(server: Secured) -> None:
    begun = []
    for turn in range(3):
        acme = server.create("acme")
        fill(server, "acme", acme, datasets=15)
        asked = threading.Thread(target=_ask_to_delete, args=(server,))
        asked.start()
        pause(0.02 + 0.1 * turn)
        server.kill()
        asked.join()
        server.start()
        tenants = [one for one in server.verb("tenants", "list") if one["tenant"] == "acme"]
        begun.append(not tenants or tenants[0]["deleting"])
        if not tenants:  # the deletion was quicker than the kill
            assert left(server, b"acme") == []
            continue
        report = server.verb("tenants", "delete", "acme", "--yes", "--force")
        assert report["done"]
        assert report["left"] == []
        assert len(report["topics"]) == 15
        assert left(server, b"acme") == []
    assert any(begun), "each was killed before it began"


def _ask_to_delete(server: Secured) -> None:
    headers = {"authorization": f"Bearer {read_local_token(server.folder / 'data')}"}
    with contextlib.suppress(httpx.HTTPError):  # it is killed
        httpx.delete(f"{server.http}/v1/tenants/acme?force=true", headers=headers, timeout=30)


# --- a cluster


async def until(holds: Any) -> None:
    while not holds():  # noqa: ASYNC110 - what another broker does sets no event
        await asyncio.sleep(0.02)


def known(node: Node, tenant: str) -> bool:
    assert node.tenant_parts is not None
    return node.tenant_parts.directory.get(tenant) is not None


def test_every_broker_follows_a_tenant_and_deletes_its_own_topics(tmp_path: Path) -> None:
    async def test(endpoint: str) -> None:
        async with cluster_nodes(tmp_path, endpoint, "a", "b", telemetry={"enabled": True}) as (a, b):
            tenants = a.node.telemetry(LOCAL).tenants(LOCAL)
            await asyncio.to_thread(tenants.create, "acme", {"retention": {"age_ms": 60_000}})
            await until(lambda: known(b.node, "acme"))
            at_a, at_b = TenantPlace("acme", "at-a"), TenantPlace("acme", "at-b")
            await a.node.telemetry(ANONYMOUS).export(ANONYMOUS, at_a, Signal.LOGS, b"a", 1)
            await b.node.telemetry(ANONYMOUS).export(ANONYMOUS, at_b, Signal.LOGS, b"b", 1)
            of_b = TopicName.parse("/acme.at-b/logs")
            await until(lambda: of_b in a.ownership.topics())
            with pytest.raises(frazil.NotOwner):
                await a.node.telemetry(ANONYMOUS).export(ANONYMOUS, at_b, Signal.LOGS, b"b", 1)
            assert b.node.topics(LOCAL).retention(of_b) == RetentionSettings(age_ms=60_000)
            await asyncio.to_thread(tenants.change, "acme", {"retention": None})
            await until(lambda: b.node.topics(LOCAL).retention(of_b) is None)
            reports = [await asyncio.to_thread(tenants.delete, "acme")]
            while not reports[-1]["done"] and len(reports) < 5:
                reports.append(await asyncio.to_thread(tenants.delete, "acme"))
            assert reports[-1]["done"], reports[-1]["left"]
            assert {one["topic"] for one in reports[-1]["topics"]} == {"/acme.at-a/logs", "/acme.at-b/logs"}
            await until(lambda: not known(b.node, "acme"))
            settings = cluster_settings(tmp_path, "a", endpoint)
            store = open_meta(settings)
            try:
                assert [one.key for one in store.list("/") if "acme" in one.key or b"acme" in one.value] == []
            finally:
                store.close()
        assert [str(one) for one in tmp_path.rglob("*.wal") if "acme" in str(one)] == []  # noqa: ASYNC240 - a few files

    with etcd_server(tmp_path / "etcd") as server:
        asyncio.run(asyncio.wait_for(test(server.endpoint), 120))
