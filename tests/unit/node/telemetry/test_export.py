"""Requests of telemetry: one row each of the topic of their signal, which the first one creates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import frazil
from frazil.core.errors import InvalidName, Overloaded, TopicDiffers
from frazil.core.names import TopicName
from frazil.core.principal import ANONYMOUS
from frazil.core.settings import make_settings
from frazil.node.node import Node
from frazil.node.telemetry.places import TenantPlace
from frazil.node.telemetry.publishing import RequestPublishers, RequestTarget, request_batch
from frazil.telemetry.signals import Signal, request_schema, signal_of

PLACE = TenantPlace("acme", "default")
TRACES = TopicName.parse("/acme.default/traces")


def run(work: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    def test(tmp_path: Path) -> None:
        asyncio.run(asyncio.wait_for(work(tmp_path), 60))

    test.__name__, test.__doc__ = work.__name__, work.__doc__
    return test


@asynccontextmanager
async def started(folder: Path, *, has_broker: bool = True, **settings: Any) -> AsyncIterator[Node]:
    with frazil.open(make_settings({"data": folder / "data", **settings})) as storage:
        node = Node(storage, has_broker=has_broker)
        await node.start()
        try:
            yield node
        finally:
            node.end_streams()
            await node.stop()


async def stored(node: Node, topic: TopicName) -> list[tuple[bytes, int]]:
    def read() -> list[tuple[bytes, int]]:
        rows = [row for batch in node.read(ANONYMOUS, str(topic)) for row in batch.to_pylist()]
        return [(row["request"], row["items"]) for row in rows]

    return await asyncio.to_thread(read)


@run
async def test_a_request_is_one_row_of_the_topic_of_its_signal(folder: Path) -> None:
    async with started(folder) as node:
        telemetry = node.telemetry(ANONYMOUS)
        place = telemetry.place(ANONYMOUS, "acme", None)
        assert place == PLACE
        assert await telemetry.export(ANONYMOUS, place, Signal.TRACES, b"\x00one", 3) == 0
        assert await telemetry.export(ANONYMOUS, place, Signal.TRACES, b"two" * 1_000, 5) == 1
        assert await telemetry.export(ANONYMOUS, place, Signal.LOGS, b"", 0) == 0
        assert await stored(node, TRACES) == [(b"\x00one", 3), (b"two" * 1_000, 5)]
        assert await stored(node, TopicName.parse("/acme.default/logs")) == [(b"", 0)]
        info = next(one for one in node.logs(ANONYMOUS) if one.topic == TRACES)
        assert signal_of(TRACES, pa.ipc.read_schema(pa.py_buffer(info.stored_schema))) is Signal.TRACES


@run
async def test_it_works_without_a_broker(folder: Path) -> None:
    async with started(folder, has_broker=False) as node:
        await node.telemetry(ANONYMOUS).export(ANONYMOUS, PLACE, Signal.METRICS, b"x", 1)
        assert await stored(node, TopicName.parse("/acme.default/metrics")) == [(b"x", 1)]


@run
async def test_first_requests_at_once_create_the_topic_once(folder: Path) -> None:
    async with started(folder) as node:
        telemetry = node.telemetry(ANONYMOUS)
        sent = (telemetry.export(ANONYMOUS, PLACE, Signal.TRACES, b"%d" % one, 1) for one in range(50))
        assert sorted(await asyncio.gather(*sent)) == list(range(50))


@run
async def test_a_topic_that_was_deleted_is_created_again(folder: Path) -> None:
    async with started(folder) as node:
        telemetry = node.telemetry(ANONYMOUS)
        await telemetry.export(ANONYMOUS, PLACE, Signal.TRACES, b"old", 1)
        await node.delete_topic(ANONYMOUS, TRACES, force=True)
        assert await telemetry.export(ANONYMOUS, PLACE, Signal.TRACES, b"new", 1) == 0
        assert await stored(node, TRACES) == [(b"new", 1)]


@run
async def test_a_topic_of_that_name_with_other_columns_is_refused(folder: Path) -> None:
    async with started(folder) as node:
        await node.create_topic(ANONYMOUS, TRACES)
        await node.create_topic(ANONYMOUS, TopicName("acme.default", "logs"), schema=request_schema(Signal.METRICS))
        for signal in (Signal.TRACES, Signal.LOGS):
            with pytest.raises(TopicDiffers):
                await node.telemetry(ANONYMOUS).export(ANONYMOUS, PLACE, signal, b"x", 1)


@run
async def test_a_full_queue_is_an_error_with_a_hint(folder: Path) -> None:
    limits = {"queue_bytes_max": 200_000, "batch_bytes_max": 150_000, "message_bytes_max": 150_000}
    async with started(folder, wal=limits) as node:
        telemetry = node.telemetry(ANONYMOUS)
        await telemetry.export(ANONYMOUS, PLACE, Signal.TRACES, b"x", 1)
        log = node.topic(ANONYMOUS, str(TRACES)).log
        with log._io:  # the disk hangs
            first = [
                asyncio.ensure_future(telemetry.export(ANONYMOUS, PLACE, Signal.TRACES, b"x" * 90_000, 1))
                for _ in range(8)
            ]
            done, _ = await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            assert {type(one.exception()) for one in done} == {Overloaded}
        answers = await asyncio.gather(*first, return_exceptions=True)
        stored_offsets = [one for one in answers if isinstance(one, int)]
        refused = [one for one in answers if isinstance(one, Overloaded)]
        assert all(one.fields["retry_after_ms"] > 0 for one in refused)
        assert len(stored_offsets) + len(refused) == 8
        assert stored_offsets


@run
async def test_publishers_are_kept_up_to_a_limit(folder: Path) -> None:
    async with started(folder) as node:
        kept = RequestPublishers(node, lambda _: None, kept_max=2)
        for tenant in ("a", "b", "c"):
            await kept.publish(RequestTarget(ANONYMOUS, TenantPlace(tenant, "default"), Signal.TRACES), b"x", 1)
        assert [one.place.tenant for one in kept.kept] == ["b", "c"]
        await kept.publish(RequestTarget(ANONYMOUS, TenantPlace("b", "default"), Signal.TRACES), b"x", 1)
        await kept.publish(RequestTarget(ANONYMOUS, TenantPlace("a", "default"), Signal.TRACES), b"x", 1)
        assert [one.place.tenant for one in kept.kept] == ["b", "a"]


def test_the_bytes_of_a_request_are_not_copied() -> None:
    request = b"x" * 100_000
    batch = request_batch(Signal.TRACES, request, 7)
    assert batch.column("request").buffers()[2].address == address_of(request)
    batch.validate(full=True)
    assert batch.to_pylist() == [{"request": request, "items": 7}]


def address_of(data: bytes) -> int:
    return int(pa.py_buffer(data).address)


@run
async def test_names_are_checked(folder: Path) -> None:
    async with started(folder) as node:
        for tenant, dataset in (("A", None), ("a.b", None), ("", "x/y"), ("-a", None), ("a", "..")):
            with pytest.raises(InvalidName):
                node.telemetry(ANONYMOUS).place(ANONYMOUS, tenant, dataset)
