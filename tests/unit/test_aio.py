"""The asyncio face: many tasks, one loop hop for a group, followers that wait without a thread."""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest

import frazil
import frazil.aio
from frazil.core.settings import KIB


def test_many_tasks_get_their_own_offsets_and_read_back_what_they_sent(tmp_path: Path) -> None:
    async def run() -> None:
        async with await frazil.aio.open(tmp_path) as storage:
            topic = await storage.topic("/default/busy")
            sent: dict[int, bytes] = {}

            async def produce(name: int) -> None:
                for index in range(20):
                    payload = b"%d:%d" % (name, index)
                    sent[await topic.publish(payload, key=b"k%d" % name)] = payload
                offsets = await topic.publish_many([b"many"] * 3)
                sent.update(dict.fromkeys(offsets, b"many"))

            await asyncio.gather(*(produce(name) for name in range(50)))
            assert sorted(sent) == list(range(50 * 23))
            assert {message.offset: message.payload async for message in topic.read()} == sent
            assert (await topic.stats()).end == 50 * 23

    asyncio.run(run())


def test_a_batch_that_its_producer_numbered_is_stored_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with await frazil.aio.open(tmp_path) as storage:
            topic = await storage.topic("/default/numbered")
            assert await topic.producer_state("till 7") is None
            till = await topic.open_producer("till 7")
            sent = frazil.Sent("till 7", till.epoch, till.next_sequence)
            both = await asyncio.gather(*(topic.publish_many(["rye", "plum"], sent=sent) for _ in range(2)))
            assert both == [frazil.OffsetRange(0, 2)] * 2
            assert await topic.publish_many(["rye", "plum"], sent=sent) == both[0]
            assert (await topic.stats()).end == 2
            state = await topic.producer_state("till 7")
            assert state is not None
            assert state.next_sequence == 2
            await topic.open_producer("till 7")
            with pytest.raises(frazil.ProducerFenced):
                await topic.publish_many(["jam"], sent=frazil.Sent("till 7", till.epoch, 2))

    asyncio.run(run())


def test_tasks_and_threads_share_a_topic(tmp_path: Path) -> None:
    async def run() -> None:
        async with await frazil.aio.open(tmp_path) as storage:
            topic = await storage.topic("/default/both")
            plain = storage._storage.topic("/default/both")
            from_thread: list[int] = []
            thread = threading.Thread(target=lambda: from_thread.extend(plain.publish(b"t") for _ in range(200)))
            thread.start()
            from_tasks = await asyncio.gather(*(topic.publish(b"a") for _ in range(200)))
            await asyncio.to_thread(thread.join)
            assert sorted(from_tasks + from_thread) == list(range(400))

    asyncio.run(run())


def test_two_loops_may_publish_to_the_same_log(tmp_path: Path) -> None:
    with frazil.open(tmp_path) as storage:
        plain = storage.topic("/default/loops")
        offsets: list[int] = []

        def loop() -> None:
            async def run() -> list[int]:
                topic = frazil.aio.Topic(plain)
                return list(await asyncio.gather(*(topic.publish(b"x") for _ in range(100))))

            offsets.extend(asyncio.run(run()))

        threads = [threading.Thread(target=loop) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(offsets) == list(range(200))


def test_a_follower_gets_everything_in_order_over_files_cache_and_tail(tmp_path: Path) -> None:
    settings = frazil.Settings(data=tmp_path, wal=frazil.WalSettings(max_file_size=64 * KIB, cache_bytes=20 * KIB))

    async def run() -> None:
        async with await frazil.aio.open(settings) as storage:
            topic = await storage.topic("/default/follow")
            for _ in range(40):
                await topic.publish(bytes(4 * KIB))
            seen: list[int] = []

            async def follow() -> None:
                async for message in topic.read(follow=True, end=100):
                    seen.append(message.offset)

            reader = asyncio.create_task(follow())
            for _ in range(60):
                await topic.publish(bytes(4 * KIB))
            await asyncio.wait_for(reader, 30)
            assert seen == list(range(100))

    asyncio.run(run())


def test_a_follower_is_closed_with_the_storage_and_a_cancelled_one_leaves_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        storage = await frazil.aio.open(tmp_path)
        topic = await storage.topic("/default/follow")

        async def follow() -> None:
            async for _ in topic.read(follow=True):
                pass

        cancelled, closed = asyncio.create_task(follow()), asyncio.create_task(follow())
        await asyncio.sleep(0.01)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await storage.close()
        with pytest.raises(frazil.Closed):
            await asyncio.wait_for(closed, 30)

    asyncio.run(run())


def test_a_cancelled_publish_does_not_disturb_its_group(tmp_path: Path) -> None:
    async def run() -> None:
        async with await frazil.aio.open(tmp_path) as storage:
            topic = await storage.topic("/default/cancel")
            tasks = [asyncio.create_task(topic.publish(b"%d" % index)) for index in range(20)]
            await asyncio.sleep(0)
            tasks[7].cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            offsets = [result for result in results if isinstance(result, int)]
            assert len(offsets) == 19
            payloads = {message.offset: message.payload async for message in topic.read()}
            assert [payloads[offset] for offset in offsets] == [b"%d" % index for index in range(20) if index != 7]

    asyncio.run(run())


@pytest.mark.timeout(60)
def test_a_loop_that_ends_with_a_publish_on_its_way_keeps_nobody_else_waiting(tmp_path: Path) -> None:
    """Neither those whose messages are stored together with its own, nor whoever comes later, nor `close`."""
    with frazil.open(tmp_path) as storage:
        plain = storage.topic("/default/loops")
        settled = threading.Event()

        async def give_up() -> None:
            left = asyncio.create_task(frazil.aio.Topic(plain).publish(b"of the loop"))
            await asyncio.sleep(0)
            left.cancel()

        with plain.log._io:  # as a disk that takes its time
            asyncio.run(give_up())
            plain.begin_publish(b"of another", None, None, lambda _: settled.set(), None)
        assert settled.wait(30)
        assert plain.publish(b"later") == 2


def test_errors_reach_the_awaiting_task(tmp_path: Path) -> None:
    async def run() -> None:
        async with await frazil.aio.open(tmp_path) as storage:
            topic = await storage.topic("/default/errors")
            with pytest.raises(frazil.MessageTooLarge):
                await topic.publish(bytes(11 * 1024 * KIB))
            with pytest.raises(frazil.InvalidPosition):
                topic.read("nowhere")
            with pytest.raises(frazil.TopicNotFound):
                await storage.topic("/default/absent", create=False)
            assert await storage.topics() == ["/default/errors"]

    asyncio.run(run())


def test_typed_batches_and_times_work_as_in_the_plain_face(tmp_path: Path) -> None:
    async def run() -> None:
        async with await frazil.aio.open(tmp_path) as storage:
            topic = await storage.create_topic("/default/typed", schema=pa.schema([("n", pa.int64())]))
            assert await topic.publish_many(pa.record_batch({"n": [1, 2]})) == frazil.OffsetRange(0, 2)
            start = datetime(2020, 1, 1, tzinfo=timezone.utc)
            batches = [batch async for batch in topic.read_batches(start)]
            assert pa.Table.from_batches(batches)["n"].to_pylist() == [1, 2]
            with pytest.raises(frazil.SchemaMismatch):
                topic.read()
            assert await topic.sync() == 2
            await storage.delete_topic("/default/typed")
            assert await storage.topics() == []

    asyncio.run(run())


def test_partitions_are_made_and_deleted_as_one(tmp_path: Path) -> None:
    async def run() -> None:
        async with await frazil.aio.open(tmp_path) as storage:
            made = await storage.create_partitions("/default/orders", 2)
            assert [topic.name for topic in made] == ["/default/orders-part-0", "/default/orders-part-1"]
            assert [await topic.publish("tea") for topic in made] == [0, 0]
            with pytest.raises(frazil.TopicExists):
                await storage.create_partitions("/default/orders", 3)
            await storage.delete_topic("/default/orders")
            assert await storage.topics() == []

    asyncio.run(run())
