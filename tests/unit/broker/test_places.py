"""Progress names the snapshot and the file that hold what is acknowledged, once the table has it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from broker_world import TOPIC as ORDERS
from broker_world import run, world

import frazil
from frazil.broker.broker import Broker
from frazil.broker.delivery.assignment import Kind
from frazil.broker.store.places import PlaceKeeper
from frazil.broker.store.records import progress_key
from frazil.broker.subscriptions.subscription import Subscription
from frazil.broker.topics.topic import OutgoingMessage
from frazil.core.clock import SystemClock
from frazil.core.names import TopicName
from frazil.core.offsets import Place
from frazil.core.rows import Origin
from frazil.core.settings import RetentionSettings, make_settings
from frazil.core.settings.broker import BrokerSettings
from frazil.core.tiers import Tier
from frazil.iceberg import SubscriptionProgress, _progress
from frazil.meta.sqlite import SqliteStore
from parts.moving import Floor, HandMover

TOPIC = "/shop/orders"
KEY = progress_key("s", TopicName.parse(TOPIC))


def test_progress_names_snapshot_and_file(tmp_path: Path) -> None:
    settings = make_settings({"data": tmp_path / "data"})
    meta = SqliteStore(tmp_path / "meta.db")

    def stored() -> dict[str, object]:
        found = meta.get(KEY)
        assert found is not None
        value = json.loads(found.value)
        assert isinstance(value, dict)
        assert isinstance(value.pop("incarnation"), int)
        return value

    async def go() -> None:
        with frazil.open(settings) as storage:
            broker = Broker(storage, meta, BrokerSettings(progress_flush_ms=10), SystemClock())
            await broker.start()
            producer = await broker.create_producer(TOPIC, "p", reliable=True)
            await broker.subscribe(TOPIC, "s", Kind.EXCLUSIVE, "c")
            keeper = broker._places
            assert isinstance(keeper, PlaceKeeper)
            for number in range(4):
                await producer.topic.publish(OutgoingMessage(b"%d" % number, None, {}, Origin("p", 1)))
            subscription = broker.subscription(TOPIC, "s")
            assert isinstance(subscription, Subscription)
            subscription.ack(0, subscription.incarnation)
            await keeper.look()
            await broker._progress.flush()
            assert stored() == {"offset": 1, "acked": [], "attempts": {}}, "there is no table yet"

            mover = HandMover(settings)
            topic = storage.topic(TOPIC)
            mover.move(topic, files=1)
            await keeper.look()
            await broker._progress.flush()
            snapshot = mover.table(topic).current_snapshot()
            assert snapshot is not None
            (task,) = mover.table(topic).scan().plan_files()
            where = {"snapshot_id": snapshot.snapshot_id, "file": task.file.file_path, "sequence_number": 2}
            assert snapshot.sequence_number == 2, "a table is born with a snapshot"
            assert stored() == {"offset": 1, "acked": [], "attempts": {}, **where}
            assert _progress(stored()) == SubscriptionProgress(1, snapshot.snapshot_id, task.file.file_path, 2)

            subscription.ack(1, subscription.incarnation)
            await broker._progress.flush()
            assert stored() == {"offset": 2, "acked": [], "attempts": {}, **where}, "that of the row before"
            mover.move(topic, end=2)
            await keeper.look()
            await broker.close()
            assert stored() == {"offset": 2, "acked": [], "attempts": {}, **where}
        meta.close()

    asyncio.run(asyncio.wait_for(go(), 60))


@run
async def test_a_subscription_resumes_from_the_file_of_its_record(tmp_path: Path) -> None:
    where = make_settings({"data": tmp_path / "data", "wal": {"max_file_size": 64 * 1024, "cache_capacity": 0}})
    floor = Floor()
    async with world(tmp_path, where=where, guards=[floor]) as here:
        client = await here.consumer("c")
        topic, mover = here.storage.topic(ORDERS), HandMover(where)
        for start in range(0, 2_000, 500):
            await asyncio.to_thread(topic.publish_many, [f"{start + at}".encode() * 20 for at in range(500)])
            await asyncio.to_thread(mover.move, topic)
        for offset in range(1_200):
            client.ack(offset, incarnation=here.subscription.incarnation)
        await here.broker._places.look()
        (third,) = (
            snapshot
            for snapshot in mover.table(topic).metadata.snapshots
            if snapshot.summary is not None and snapshot.summary.additional_properties.get("total-records") == "1500"
        )
        status = here.admin.subscription(TopicName.parse(ORDERS), "s")
        assert status.snapshot_id == third.snapshot_id
        assert status.file is not None
        floor.ends[topic.log.log_id] = 2_000
        here.storage.set_retention(ORDERS, RetentionSettings(bytes=1))
        await asyncio.to_thread(here.storage.maintain)
        assert topic.log.first_offset > 1_210
    async with world(tmp_path, where=where) as here:
        asked = []
        history = here.storage.topic(ORDERS).log.history
        assert history is not None
        from_place = history.from_place

        def noted(after: Place) -> Tier:
            asked.append(after)
            return from_place(after)

        history.from_place = noted  # type: ignore[method-assign]
        client = await here.consumer("c")
        assert await client.take() == [(1_200, "1200" * 20)]
        assert asked == [Place(third.snapshot_id, status.file, third.sequence_number or 0)]
        again = here.admin.subscription(TopicName.parse(ORDERS), "s")
        assert (again.snapshot_id, again.file) == (status.snapshot_id, status.file)
        await here.admin.reset(TopicName.parse(ORDERS), "s", 3)
        assert here.subscription.place is None, "it is that of a row which is ahead now"
