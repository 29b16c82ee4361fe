"""The broker and its doors, opened and closed together on the loop of the serving process."""

from __future__ import annotations

import asyncio
from functools import partial

from frazil.broker.broker import Broker
from frazil.broker.floor import AckFloor
from frazil.broker.topic import BrokerTopic
from frazil.core.clock import SystemClock
from frazil.core.names import TopicName
from frazil.core.settings import Settings
from frazil.log.storage import Storage
from frazil.meta.opening import open_meta
from frazil.meta.store import MetaStore
from frazil.registry.registry import SchemaRegistry
from frazil.registry.topics import TopicSchemas
from frazil.serve.admin.parts import BrokerParts
from frazil.serve.danube import DanubeDoor, Publish
from frazil.serve.danube_schemas import DanubeSchemas
from frazil.serve.schema_checks import SchemaChecks


class BrokerDoors:
    def __init__(self, storage: Storage, settings: Settings, publish: Publish = BrokerTopic.publish) -> None:
        self._storage = storage
        self._publish = publish
        self._settings = settings
        self._broker: Broker | None = None
        self._door: DanubeDoor | None = None
        self._meta: MetaStore | None = None
        self.checks: SchemaChecks | None = None
        """Of messages that come by any door, once it is open."""
        self.parts: BrokerParts | None = None
        """For administrators, once it is open."""

    @property
    def broker(self) -> Broker | None:
        """None before it is open."""
        return self._broker

    async def open(self) -> str:
        """The address for Danube clients."""
        self._meta = await asyncio.to_thread(open_meta, self._settings)
        registry = SchemaRegistry(self._meta, SystemClock())
        topics = TopicSchemas(self._meta, registry, SystemClock())
        forget = partial(_forget_schema, self._storage, topics)
        self._broker = Broker(self._storage, self._meta, self._settings.broker, SystemClock(), forget)
        await self._broker.start()
        self._storage.floor_of = AckFloor(self._storage.floor_of, self._broker)
        schemas = DanubeSchemas(registry, topics)
        broker, bytes_max = self._settings.broker, self._settings.wal.message_bytes_max
        self.checks = SchemaChecks(topics)
        self._door = DanubeDoor(self._broker, schemas, self.checks, broker, bytes_max, self._publish)
        await self._door.start()
        self.parts = BrokerParts(self._broker, registry, topics)
        return self._door.url

    async def close(self) -> None:
        """Calls are answered and streams end before cursors are stored."""
        if self._broker is not None:
            self._broker.end_streams()
        if self._door is not None:
            await self._door.stop()
        if self._broker is not None:
            await self._broker.close()
        if self._meta is not None:
            self._meta.close()


def _forget_schema(storage: Storage, schemas: TopicSchemas, name: TopicName) -> None:
    """Of a topic that goes; partitions share it, so it goes with the last of them."""
    base = name.partition_of()[0]
    there = (TopicName.parse(one) for one in storage.topics())
    if not any(one != name and one.partition_of()[0] == base for one in there):
        schemas.forget(str(base))
