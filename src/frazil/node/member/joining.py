"""Join a cluster: claim the prefix, take the session of this broker, and make its topics ready to be opened."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from frazil.broker.broker import Broker
from frazil.broker.store.cluster_claim import claim_for_cluster
from frazil.core.clock import Clock
from frazil.core.errors import FrazilError, MetadataInUse, ObjectStoreUnavailable
from frazil.core.settings import Settings
from frazil.log.storage import Storage
from frazil.meta.store import MetaStore
from frazil.node.member.broker_cluster import BrokerCluster
from frazil.node.member.node_host import NodeHost
from frazil.node.objects.deletion import has_lost_record
from frazil.node.objects.parts import ObjectParts
from frazil.node.ownership.cluster_ownership import ClusterOwnership
from frazil.node.ownership.opening import broker_id_of, cluster_open

COPY_SECONDS = 60.0
"""The age of positions in the copy next to the data."""
CHECK_SECONDS = 0.5

_log = logging.getLogger("frazil.cluster")


@dataclass(frozen=True, slots=True)
class Membership:
    """This broker in its cluster. Its session stands; no topic is open before `start`."""

    ownership: ClusterOwnership
    cluster: BrokerCluster
    host: NodeHost
    meta: MetaStore

    async def start(self, broker: Broker) -> asyncio.Task[None]:
        """Open the topics of this broker, from now on. Returns the task that watches over them."""
        self.host.use(broker)
        known = set(self.ownership.topics())
        for name in self.host.local().keys() - known:
            if await asyncio.to_thread(has_lost_record, self.meta, name, self.host.local()[name].log_id):
                _log.warning("%s is in the folder, and the cluster has no such topic: it was deleted", name)
                await self.host.discard(name)
        self.ownership.start()
        return asyncio.create_task(self._watch(broker), name="topics of this broker")

    async def _watch(self, broker: Broker) -> None:
        """Report topics whose logs have ended. Store all records again if the metadata store was restored from a
        backup, and copy them once a minute."""
        steps_back, waited = self.meta.steps_back, 0.0
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            waited += CHECK_SECONDS
            for topic, ended in self.host.ended().items():
                self.ownership.failed(topic, ended)
            try:
                await self._look_for_owners()
                if self.meta.steps_back != steps_back:
                    _log.warning("the metadata store was restored: the records of all topics here are stored again")
                    await broker.store_again()
                    await self.host.store_names_again()
                    steps_back = self.meta.steps_back
                if waited >= COPY_SECONDS:
                    waited = 0.0
                    await broker.copy_all()
            except FrazilError as error:
                _log.warning("the records of the topics here are stored later: %s", error)

    async def _look_for_owners(self) -> None:
        """While the metadata store does not answer this broker, others may have taken its topics over."""
        if not self.ownership.is_cut_off:
            return
        with contextlib.suppress(ObjectStoreUnavailable):  # looked at again soon
            for topic, error in (await self.host.look()).items():
                self.ownership.failed(topic, error)


@asynccontextmanager
async def cluster_joined(
    storage: Storage,
    meta: MetaStore,
    settings: Settings,
    clock: Clock,
    addresses: Mapping[str, str],
    on_lost: Callable[[MetadataInUse], None],
) -> AsyncIterator[Membership]:
    """Close everything that changes `meta` before. `addresses` is the live mapping of the doors."""
    objects = storage.attachment
    assert isinstance(objects, ObjectParts), "a cluster has an object tier"
    await asyncio.to_thread(claim_for_cluster, meta, settings.metadata)
    async with AsyncExitStack() as stack:
        host = NodeHost(
            storage,
            meta,
            objects.objects,
            objects.uploader,
            objects.acks,
            broker_id_of(settings),
            addresses,
            clock,
            settings.cluster.moves_parallel_max,
            objects.deleted.was_deleted,
        )
        stack.callback(host.close)
        await asyncio.to_thread(host.load)
        ownership = await stack.enter_async_context(cluster_open(meta, settings, host, addresses, clock, on_lost))
        objects.uploader.on_fenced = ownership.failed
        objects.retention.owned = host.owned
        cluster = BrokerCluster(ownership, settings.client)
        stack.push_async_callback(cluster.close)
        yield Membership(ownership, cluster, host, meta)
