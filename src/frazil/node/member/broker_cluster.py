"""The cluster as the broker of a node sees it; see `frazil.broker.store.cluster.Cluster`.

Dead letters go to a topic that another broker may own: they are published there over Flight, with the credentials of
the settings' `client`, as a client of that broker.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection
from typing import TYPE_CHECKING

import pyarrow as pa

from frazil.broker.topics.topic import OutgoingMessage
from frazil.core.errors import FrazilError, NotOwner, TopicUnavailable
from frazil.core.names import TopicName
from frazil.core.rows import ENVELOPE
from frazil.core.settings.security import ClientSettings
from frazil.node.ownership.cluster_ownership import ClusterOwnership
from frazil.node.threads import Threads

if TYPE_CHECKING:
    from frazil.client.storage import RemoteStorage

GIVE_UP_MS = 5_000
LETTERS_AT_ONCE = 4

COLUMNS = pa.schema([field for field in ENVELOPE if field.name != "_append_time"])


class BrokerCluster:
    """`publish_elsewhere` is for the event loop, everything else for any thread."""

    def __init__(self, ownership: ClusterOwnership, client: ClientSettings) -> None:
        self.broker_id = ownership.broker_id
        self._ownership = ownership
        self._client = client
        self._threads = Threads("frazil-letters", LETTERS_AT_ONCE)
        self._guard = threading.Lock()
        self._connected: dict[str, RemoteStorage] = {}

    async def created(self, topic: TopicName) -> None:
        await self._ownership.created(topic)

    def owns(self, name: TopicName) -> bool:
        return self._ownership.owns(name)

    def serves(self, name: TopicName) -> bool:
        return self._ownership.serves(name)

    def family(self, name: TopicName) -> Collection[TopicName]:
        return self._ownership.family(name)

    async def publish_elsewhere(self, topic: TopicName, message: OutgoingMessage) -> bool:
        try:
            self._ownership.must_own(topic)
        except NotOwner as error:
            addresses = error.fields["addresses"]
            address = addresses.get("advertised") or addresses.get("flight")
            if address is None:
                raise TopicUnavailable(str(topic), "its broker has no Flight door") from None
        else:
            return False
        await self._threads.run(self._publish_at, str(address), topic, message)
        return True

    async def close(self) -> None:
        self._threads.close()
        with self._guard:
            connected, self._connected = list(self._connected.values()), {}
        for one in connected:
            await asyncio.to_thread(one.close)

    def _publish_at(self, address: str, topic: TopicName, message: OutgoingMessage) -> None:
        try:
            storage = self._storage_at(address)
            storage.topic(str(topic), create=False).publish_many(_row(message))
        except FrazilError:
            with self._guard:
                failed = self._connected.pop(address, None)
            if failed is not None:
                failed.close()
            raise

    def _storage_at(self, address: str) -> RemoteStorage:
        from frazil.client.storage import connect

        with self._guard:
            found = self._connected.get(address)
        if found is not None:
            return found
        made = connect(address, client=self._client, give_up_ms=GIVE_UP_MS)
        with self._guard:
            kept = self._connected.setdefault(address, made)
        if kept is not made:
            made.close()
        return kept


def _row(message: OutgoingMessage) -> pa.RecordBatch:
    origin = message.origin
    row = {
        "_publish_time": origin.publish_time_us or 0,
        "_producer": origin.producer,
        "_key": None if message.key is None else message.key.encode(),
        "_attributes": list(message.attributes.items()),
        "_schema_id": origin.schema_id,
        "_schema_version": origin.schema_version,
        "_payload": message.payload,
    }
    return pa.RecordBatch.from_pylist([row], schema=COLUMNS)
