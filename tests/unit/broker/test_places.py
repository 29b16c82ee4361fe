"""Progress names the snapshot and the file that hold what is acknowledged, once the table has it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import frazil
from frazil.broker.broker import Broker
from frazil.broker.choice import Kind
from frazil.broker.places import PlaceKeeper
from frazil.broker.records import progress_key
from frazil.broker.topic import Outgoing
from frazil.core.broker_settings import BrokerSettings
from frazil.core.clock import SystemClock
from frazil.core.names import TopicName
from frazil.core.rows import Origin
from frazil.core.settings import make_settings
from frazil.iceberg import SubscriptionProgress, _progress
from frazil.meta.sqlite import SqliteStore
from parts.moving import HandMover

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
                await producer.topic.publish(Outgoing(b"%d" % number, None, {}, Origin("p", 1)))
            subscription = broker.subscription(TOPIC, "s")
            subscription.ack(0)
            await keeper.look()
            await broker._progress.flush()
            assert stored() == {"offset": 1, "acked": [], "epoch": 0}, "there is no table yet"

            mover = HandMover(settings)
            topic = storage.topic(TOPIC)
            mover.move(topic, files=1)
            await keeper.look()
            await broker._progress.flush()
            snapshot = mover.table(topic).current_snapshot()
            assert snapshot is not None
            (task,) = mover.table(topic).scan().plan_files()
            where = {"snapshot_id": snapshot.snapshot_id, "file": task.file.file_path}
            assert stored() == {"offset": 1, "acked": [], "epoch": 0, **where}
            assert _progress(stored()) == SubscriptionProgress(1, snapshot.snapshot_id, task.file.file_path)

            subscription.ack(1)
            await broker._progress.flush()
            assert stored() == {"offset": 2, "acked": [], "epoch": 0}, "not yet looked for"
            await keeper.look()
            await broker.close()
            assert stored() == {"offset": 2, "acked": [], "epoch": 0, **where}
        meta.close()

    asyncio.run(asyncio.wait_for(go(), 60))
