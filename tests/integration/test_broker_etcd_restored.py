"""etcd is put back from an older copy, or used by a second server: nothing is passed over, and nothing mixed up."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from danube.client import DanubeClient
from danube.schema import SchemaType

from frazil.core.settings import make_settings
from frazil.meta.broker_keys import SESSION, SUBSCRIPTIONS
from frazil.meta.opening import open_meta
from parts.danube import Server, connect, producer, subscriber
from parts.etcd import Etcd, etcd_server
from parts.movers import environment

pytestmark = pytest.mark.timeout(180)

ORDERS = b'{"type": "object", "properties": {"tea": {"type": "string"}}}'


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with etcd_server(tmp_path / "etcd") as found:
        yield found


def metadata(etcd: Etcd) -> dict[str, Any]:
    return {"type": "etcd", "endpoints": [etcd.endpoint], "timeout_ms": 2_000}


@pytest.fixture
def server(tmp_path: Path, etcd: Etcd) -> Iterator[Server]:
    made = Server(tmp_path / "server", metadata=metadata(etcd))
    made.start()
    yield made
    made.kill()


def keys(etcd: Etcd, prefix: str) -> list[str]:
    store = open_meta(make_settings({"metadata": metadata(etcd)}))
    try:
        return [entry.key for entry in store.list(prefix)]
    finally:
        store.close()


async def until_stored(etcd: Etcd, prefix: str, count: int) -> None:
    for _ in range(600):
        if len(await asyncio.to_thread(keys, etcd, prefix)) == count:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{await asyncio.to_thread(keys, etcd, prefix)}")


def test_a_subscription_that_a_restored_etcd_never_had_passes_over_nothing(etcd: Etcd, server: Server) -> None:
    """It was made after the copy. The server that runs stores it again, so the next one knows it too."""

    async def before(copied: list[Path]) -> None:
        client = await connect(server)
        sender = await producer(client)
        async with subscriber(client, subscription="old") as old:
            await sender.send(b"one")
            assert await old.texts(1) == ["one"]
            copied.append(await asyncio.to_thread(etcd.copy, "copy"))
            async with subscriber(client, subscription="new") as new:
                await sender.send(b"two")
                assert await new.texts(1) == ["two"]
            await asyncio.to_thread(etcd.restore, copied[0])
            await sender.send(b"three")
            await until_stored(etcd, SUBSCRIPTIONS, 2)
            assert await old.texts(2) == ["two", "three"]

    async def after() -> None:
        client = await connect(server)
        async with subscriber(client, subscription="new") as new:
            assert (await new.texts(1))[-1] == "three", "what came while nobody received is not passed over"
        sender = await producer(client)
        async with subscriber(client, subscription="old") as old:
            await sender.send(b"four")
            while (await old.texts(1)) != ["four"]:
                pass

    asyncio.run(asyncio.wait_for(before([]), 120))
    server.kill()
    server.start()
    asyncio.run(asyncio.wait_for(after(), 60))
    assert "Traceback" not in server.log()


def test_the_same_if_etcd_is_restored_while_no_server_runs(etcd: Etcd, server: Server) -> None:
    """A schema id that the copy does not know is not given to another subject either."""

    async def before() -> Path:
        client = await connect(server)
        sender = await producer(client)
        copy = await asyncio.to_thread(etcd.copy, "copy")
        async with subscriber(client, subscription="new") as new:
            await sender.send(b"one")
            assert await new.texts(1) == ["one"]
        await sender.send(b"two")
        assert (await schema(client, "orders", ORDERS)).schema_id == 1
        return copy

    async def after() -> None:
        client = await connect(server)
        async with subscriber(client, subscription="new") as new:
            while (await new.texts(1)) != ["two"]:
                pass
        assert (await schema(client, "payments", ORDERS)).schema_id == 2
        assert (await schema(client, "orders", ORDERS)).schema_id == 1

    async def schema(client: DanubeClient, subject: str, definition: bytes) -> Any:
        builder = client.schema().register_schema(subject).with_type(SchemaType.JSON_SCHEMA)
        await builder.with_schema_data(definition).execute()
        return await client.schema().get_latest_schema(subject)

    copy = asyncio.run(asyncio.wait_for(before(), 60))
    server.kill()
    etcd.restore(copy)
    server.start()
    asyncio.run(asyncio.wait_for(after(), 60))
    assert "the metadata store has lost" in server.log()
    assert "Traceback" not in server.log()


def another(folder: Path, etcd: Etcd) -> subprocess.CompletedProcess[str]:
    """A second server, which is expected to refuse."""
    other = Server(folder, metadata=metadata(etcd))
    command = [sys.executable, "-m", "frazil", "serve", "--no-pipeline", "--json"]
    command += ["--data", str(folder / "data"), "--config", str(folder / "frazil.yaml")]
    assert other.process is None
    return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=90, check=False)


@asynccontextmanager
async def one_message_unread(server: Server) -> AsyncIterator[None]:
    client = await connect(server)
    sender = await producer(client)
    async with subscriber(client) as receiver:
        await sender.send(b"read")
        assert await receiver.texts(1) == ["read"]
    await sender.send(b"unread")
    yield
    async with subscriber(client) as receiver:
        assert await receiver.texts(1) == ["unread"]


def test_a_server_with_another_folder_is_refused_the_prefix_of_the_first(
    etcd: Etcd, server: Server, tmp_path: Path
) -> None:
    """It would take the first one's topics for its own, made again, and forget their subscriptions."""

    async def work() -> None:
        async with one_message_unread(server):
            refused = await asyncio.to_thread(another, tmp_path / "other", etcd)
            assert refused.returncode == 6, refused.stderr
            assert f"metadata: /frazil at {etcd.endpoint} is used by the data folder {server.folder}" in refused.stderr
            assert "give" in refused.stderr
            assert "Traceback" not in refused.stderr

    asyncio.run(asyncio.wait_for(work(), 120))


def test_a_server_on_a_copy_of_the_folder_is_refused_while_the_first_runs(
    etcd: Etcd, server: Server, tmp_path: Path
) -> None:
    async def work() -> None:
        async with one_message_unread(server):
            shutil.copytree(server.folder / "data", tmp_path / "other" / "data")
            refused = await asyncio.to_thread(another, tmp_path / "other", etcd)
            assert refused.returncode == 6, refused.stderr
            assert server.process is not None
            assert f"is used by process {server.process.pid} on" in refused.stderr

    asyncio.run(asyncio.wait_for(work(), 120))


def test_a_server_whose_claim_another_has_taken_ends_and_stores_nothing(etcd: Etcd, server: Server) -> None:
    """As after a pause longer than its lease, in which a server elsewhere was started on a copy of its folder."""
    assert server.process is not None
    store = open_meta(make_settings({"metadata": metadata(etcd)}))
    try:
        found = store.get(SESSION)
        assert found is not None
        taken = json.dumps({"session": "another", "process": {"host": "far", "place": "", "pid": 7, "started": 1}})
        while store.put_if(SESSION, taken.encode(), found.revision) is None:
            found = store.get(SESSION)
            assert found is not None
        code = server.process.wait(60)
        after = store.get(SESSION)
    finally:
        store.close()
    assert code == 6
    assert after is not None
    assert after.value == taken.encode()
    assert "is used by process 7 on far" in server.log()
    assert "Traceback" not in server.log()


def test_a_server_that_is_killed_is_followed_at_once(etcd: Etcd, server: Server) -> None:
    """Its lease is not waited for, which would be half a minute: its process is gone."""
    for _ in range(2):
        server.kill()
        server.start()
    assert "waiting for its lease" not in server.log()


def test_a_server_is_stopped_in_time_while_etcd_hangs(etcd: Etcd, server: Server) -> None:
    async def work() -> None:
        client = await connect(server)
        sender = await producer(client)
        async with subscriber(client) as receiver:
            await sender.send(b"one")
            assert await receiver.texts(1) == ["one"]
        with etcd.stopped():
            async with subscriber(client) as receiver:
                await sender.send(b"two")
                assert await receiver.texts(1) == ["two"]
            code = await asyncio.to_thread(server.stop)
        assert code == 0, "the log is whole; progress is behind, and messages come again"

    asyncio.run(asyncio.wait_for(work(), 120))
    assert "could not be stored" in server.log()
    assert "Traceback" not in server.log()
