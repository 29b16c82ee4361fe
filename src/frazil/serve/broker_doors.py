"""The broker and its doors, opened and closed together on the loop of the serving process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from frazil.broker.broker import Broker
from frazil.broker.claim import Claim
from frazil.broker.claim_keeper import ClaimKeeper
from frazil.broker.companion import Companion
from frazil.broker.floor import AckGuard
from frazil.broker.namespaces import Namespaces
from frazil.broker.topic import BrokerTopic
from frazil.core.clock import SystemClock
from frazil.core.disk import LocalDisk
from frazil.core.errors import MetadataInUse
from frazil.core.metadata_settings import MetadataType
from frazil.core.names import TopicName
from frazil.core.settings import Settings
from frazil.log.identity import folder_id
from frazil.log.storage import Storage
from frazil.meta.opening import open_meta
from frazil.meta.sqlite import SqliteStore
from frazil.meta.store import MetaStore
from frazil.registry.given import GivenNumbers
from frazil.registry.registry import SchemaRegistry
from frazil.registry.topics import TopicSchemas
from frazil.serve.admin.parts import BrokerParts
from frazil.serve.danube import DanubeDoor, Publish
from frazil.serve.danube_schemas import DanubeSchemas
from frazil.serve.grpc_admin import AdminDoor
from frazil.serve.schema_checks import SchemaChecks
from frazil.serve.threads import Threads

COPY_FILE = "~meta-copy.db"
"""What must be known though the metadata store is restored from an older copy."""
SCHEMA_CALLS_MAX = 8
"""At once; others wait."""


class BrokerDoors:
    def __init__(
        self,
        storage: Storage,
        settings: Settings,
        publish: Publish = BrokerTopic.publish,
        addresses: Mapping[str, str] | None = None,
    ) -> None:
        """`addresses` are those of the other doors, by their names."""
        self._storage = storage
        self._addresses = addresses or {}
        self._publish = publish
        self._settings = settings
        self._broker: Broker | None = None
        self._door: DanubeDoor | None = None
        self._admin_door: AdminDoor | None = None
        self._meta: MetaStore | None = None
        self._threads: Threads | None = None
        self._claim: ClaimKeeper | None = None
        self._copy: SqliteStore | None = None
        self.on_lost: Callable[[MetadataInUse], None] = lambda _: None
        """Called if another server takes the metadata over: this one must end."""
        self.checks: SchemaChecks | None = None
        """Of messages that come by any door, once it is open."""
        self.parts: BrokerParts | None = None
        """For administrators, once it is open."""

    @property
    def broker(self) -> Broker | None:
        """None before it is open."""
        return self._broker

    async def open(self) -> dict[str, str]:
        """The addresses for Danube clients and Danube's admin tools."""
        self._meta = await asyncio.to_thread(open_meta, self._settings)
        await self._claim_metadata(self._meta)
        registry = await asyncio.to_thread(self._registry, self._meta)
        topics = TopicSchemas(self._meta, registry, SystemClock())
        schema = _SchemaOfTopic(self._storage, topics)
        copy = self._copy if self._claim is not None else None  # a file in the folder is restored with the folder
        self._broker = Broker(self._storage, self._meta, self._settings.broker, SystemClock(), schema, copy)
        await self._broker.start()
        await asyncio.to_thread(topics.learn, [str(name) for name in self._broker.topics])
        if self._claim is not None:
            self._claim.keep(self._broker)
        self._storage.guards = [*self._storage.guards, AckGuard(self._broker)]
        self._threads = Threads("frazil-schemas", SCHEMA_CALLS_MAX)
        schemas = DanubeSchemas(registry, topics, self._threads)
        broker, bytes_max = self._settings.broker, self._settings.wal.message_bytes_max
        self.checks = SchemaChecks(topics, self._threads)
        self._door = DanubeDoor(self._broker, schemas, self.checks, broker, bytes_max, self._publish)
        await self._door.start()
        self._broker.address = self._door.url
        namespaces = Namespaces(self._meta, self._storage, partial(list, self._broker.topics))
        self.parts = BrokerParts(self._broker, registry, topics, namespaces)
        self._admin_door = AdminDoor(self._storage, self.parts, broker, self._addresses)
        await self._admin_door.start()
        return {"danube": self._door.url, "admin": self._admin_door.url}

    async def close(self) -> None:
        """Calls are answered and streams end before cursors are stored."""
        if self._broker is not None:
            self._broker.end_streams()
        doors = (self._admin_door, self._door)
        await asyncio.gather(*(door.stop() for door in doors if door is not None))
        if self._broker is not None:
            await self._broker.close()
        if self.checks is not None:
            self.checks.close()
        if self._threads is not None:
            self._threads.close()
        if self._claim is not None:
            await self._claim.close()
        for store in (self._meta, self._copy):
            if store is not None:
                store.close()

    async def _claim_metadata(self, meta: MetaStore) -> None:
        """A file in the folder has the folder's owner; what others can reach too must be claimed."""
        metadata = self._settings.metadata
        if metadata.type is MetadataType.SQLITE:
            return
        folder = self._settings.data or self._settings.log_folder
        claim = Claim(meta, metadata, await asyncio.to_thread(folder_id, LocalDisk(), folder), str(folder))
        self._claim = ClaimKeeper(claim, self.on_lost)
        await self._claim.take()

    def _registry(self, meta: MetaStore) -> SchemaRegistry:
        folder = self._settings.data or self._settings.log_folder
        self._copy = SqliteStore(folder / COPY_FILE)
        registry = SchemaRegistry(meta, SystemClock(), given=GivenNumbers(self._copy))
        registry.start()
        return registry


class _SchemaOfTopic(Companion):
    """What is set for the messages of a topic. Partitions share it, so it goes with the last of them."""

    def __init__(self, storage: Storage, schemas: TopicSchemas) -> None:
        self._storage = storage
        self._schemas = schemas

    def keys(self, name: TopicName) -> list[str]:
        is_last = self._storage.family(name) <= {name}
        return [self._schemas.key(str(name))] if is_last else []

    def forgotten(self, name: TopicName) -> None:  # noqa: ARG002 - all that is remembered is dropped
        self._schemas.changed()
