"""The storage that writes to Iceberg by itself: with its own mover, through restarts, with slow and quick readers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.core.clock import SystemClock
from frazil.core.credentials import ClientCredentials
from frazil.core.errors import Unauthenticated
from frazil.core.settings import make_settings
from frazil.iceberg import SUBSCRIPTIONS, IcebergStorage, StartPosition, SubscriptionProgress
from frazil.log.folder.ownership import served_by
from frazil.meta.sqlite import SqliteStore
from frazil.node.movers.log_source import RemoteOwner
from frazil.node.movers.status_file import read_status
from parts.movers import wait_until
from parts.secured_server import TlsFiles


def config(data: Path) -> dict[str, Any]:
    """As the storage section of a broker's file has it."""
    wanted = {"writer": {"flush_interval_ms": 200}, "catalog": {"properties": {"secret": "tea"}}}
    return {"data": data, "storage": {"type": "iceberg", "iceberg_config": wanted}}


async def payloads(storage: IcebergStorage, topic: str, count: int, start: Any = "earliest") -> list[bytes]:
    reader = storage.create_reader(topic, start)
    return [(await anext(reader)).payload for _ in range(count)]


@pytest.mark.timeout(240)
def test_what_is_stored_comes_to_the_table_by_itself(tmp_path: Path) -> None:
    async def run() -> None:
        async with await IcebergStorage.create(config(tmp_path)) as storage:
            await storage.initialize_topic("orders")
            assert await storage.store("orders", [b"tea", b"milk"]) == frazil.OffsetRange(0, 2)
            before = await storage.get_topic_stats("/default/orders")
            assert (before.message_count, before.log_end) == (2, 2)
            assert before.bytes_stored > 0
            told = tmp_path / "~mover.json"
            assert stat.S_IMODE(told.stat().st_mode) == 0o600
            assert json.loads(told.read_text())["catalog"]["properties"] == {"secret": "tea"}
            await storage.flush(timeout_ms=200_000)
            after = await storage.get_topic_stats("orders")
            assert after.table_end == 2
            assert after.snapshot_id is not None
        assert not told.exists()

    asyncio.run(run())
    with frazil.open(tmp_path) as storage:  # the folder is free again
        assert storage.topics() == ["/default/orders"]


def has_reported(settings: frazil.Settings) -> bool:
    """Whether the mover leads, and has told so: before it starts Spark."""
    return read_status(settings, SystemClock()) is not None


@pytest.mark.timeout(240)
def test_with_security_on_its_mover_gets_in_and_nobody_else(tmp_path: Path) -> None:
    data, files = tmp_path / "data", TlsFiles(tmp_path / "tls")
    tls = {"certificate": str(files.certificate), "key": str(files.key)}
    settings = make_settings({**config(data), "security": {"enabled": True, "tls": tls}})

    async def run() -> None:
        async with await IcebergStorage.create(settings):
            assert stat.S_IMODE((data / "~token").stat().st_mode) == 0o600
            address = (served_by(settings) or {})["flight"]
            assert address.startswith("grpc+tls://")
            for token in (None, "frz_aaaaaaaaaaaaaaaa_" + "a" * 43):
                credentials = ClientCredentials(token=token, ca=files.ca.read_bytes())
                with pytest.raises(Unauthenticated):
                    RemoteOwner(address, credentials).logs()
            await asyncio.to_thread(wait_until, lambda: has_reported(settings))

    asyncio.run(run())
    assert not (data / "~token").exists()


def test_without_a_mover_flush_tells_how_far_the_table_is(tmp_path: Path) -> None:
    async def run() -> None:
        async with await IcebergStorage.create(tmp_path, mover=False) as storage:
            await storage.flush(timeout_ms=1)
            await storage.store("orders", [b"tea"])
            with pytest.raises(frazil.TryLater, match="has /default/orders up to offset 0, not 1, after 1 ms"):
                await storage.flush("orders", timeout_ms=1)

    asyncio.run(run())


def test_a_batch_sent_again_is_stored_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with await IcebergStorage.create(tmp_path, mover=False) as storage:
            till = await storage.open_producer("orders", "till 7")
            sent = frazil.Sent("till 7", till.epoch, till.next_sequence)
            first = await storage.store("orders", [b"tea"], sent=sent)
            assert await storage.store_messages("orders", [b"tea"], sent=sent) == first
            assert (await storage.get_topic_stats("orders")).message_count == 1

    asyncio.run(run())


def test_each_reader_has_its_own_start_and_pace(tmp_path: Path) -> None:
    async def run() -> None:
        async with await IcebergStorage.create(tmp_path, mover=False) as storage:
            sent = [b"%d" % number for number in range(5_000)]
            slow = storage.create_reader("orders", StartPosition.earliest())
            late = storage.create_reader("orders", StartPosition.latest())
            await storage.store("orders", sent[:1])
            assert (await anext(slow)).payload == b"0"
            coming = asyncio.create_task(anext(late))
            await asyncio.sleep(0)
            while not coming.done():  # it starts at the end that it finds
                sent_now = await storage.store_messages("orders", sent[1:2])
                await asyncio.sleep(0.01)
            assert coming.result().offset <= sent_now.start
            await storage.store("orders", sent[2:])
            end = (await storage.get_topic_stats("orders")).log_end
            assert len(await payloads(storage, "orders", end)) == end
            assert await payloads(storage, "orders", 2, StartPosition.offset(end - 2)) == sent[-2:]
            assert [(await anext(slow)).offset for _ in range(end - 1)] == list(range(1, end))

    asyncio.run(run())


def test_a_subscription_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    async def first() -> None:
        async with await IcebergStorage.create(tmp_path, mover=False) as storage:
            await storage.store("/shop/orders", [b"a", b"b", b"c"])
            assert await storage.load_progress("billing", "/shop/orders") is None
            reader = storage.create_reader("/shop/orders", subscription="billing")
            assert [(await anext(reader)).payload for _ in range(2)] == [b"a", b"b"]
            await reader.save()
            await storage.save_progress("audit", "/shop/orders", SubscriptionProgress(1, 77, "a.parquet"))

    async def second() -> None:
        async with await IcebergStorage.create(tmp_path, mover=False) as storage:
            reader = storage.create_reader("/shop/orders", subscription="billing")
            assert (await anext(reader)).payload == b"c"
            progress = await storage.load_progress("audit", "/shop/orders")
            assert progress == SubscriptionProgress(1, 77, "a.parquet")
            with pytest.raises(frazil.InvalidName, match="the subscription 'a/b' must be"):
                storage.create_reader("/shop/orders", subscription="a/b")
            with pytest.raises(frazil.InvalidInput, match="subscription: this reader has none"):
                await storage.create_reader("/shop/orders").save()

    asyncio.run(first())
    store = SqliteStore(tmp_path / "~meta.db")
    assert [entry.key for entry in store.list(SUBSCRIPTIONS)] == [
        f"{SUBSCRIPTIONS}/audit/shop/orders",
        f"{SUBSCRIPTIONS}/billing/shop/orders",
    ]
    store.close()
    asyncio.run(second())


CRASHING = """
import asyncio, os, signal, sys
from frazil.iceberg import IcebergStorage

async def run():
    storage = await IcebergStorage.create(sys.argv[1], mover=False)
    await storage.store("orders", [b"%d" % number for number in range(1_000)])
    reader = storage.create_reader("orders", subscription="billing")
    for _ in range(400):
        await anext(reader)
    await reader.save()
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(run())
"""


def test_after_a_crash_all_is_there_and_progress_too(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CRASHING, str(tmp_path)], env=dict(os.environ), check=False)
    assert done.returncode == -signal.SIGKILL

    async def run() -> None:
        async with await IcebergStorage.create(make_settings({"data": tmp_path}), mover=False) as storage:
            assert await payloads(storage, "orders", 1_000) == [b"%d" % number for number in range(1_000)]
            assert (await anext(storage.create_reader("orders", subscription="billing"))).offset == 400

    asyncio.run(run())


def test_it_needs_a_folder(tmp_path: Path) -> None:
    with pytest.raises(frazil.InvalidSettings, match=r"data: .* needs a data folder"):
        asyncio.run(IcebergStorage.create({"data": None}))
