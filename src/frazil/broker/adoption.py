"""Topics that this broker takes over from another, or lets go: their users are loaded from the shared store, or stored.

    adopt      load producers, subscriptions with their cursors and policies, and consumers; then serve them
    release    end the streams, store the cursors, and forget the topic here. Nothing stored is deleted

Clients keep their ids: these are in the records, and valid at any broker that owns the topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from frazil.broker.clients import Producer
from frazil.broker.producers import BrokerProducers
from frazil.broker.serial import SerialLock
from frazil.broker.store.progress import ProgressKeeper
from frazil.broker.store.records import Records
from frazil.broker.store.startup import StoredSubscription, StoredUsers
from frazil.broker.subscriptions.live import LiveSubscription
from frazil.broker.subscriptions.subscription import Subscription
from frazil.broker.topics.directory import Directory
from frazil.broker.topics.topic import BrokerTopic
from frazil.core.names import TopicName

_log = logging.getLogger("frazil.broker")


class TopicAdoption:
    """Used on the broker's event loop."""

    def __init__(
        self,
        directory: Directory,
        records: Records,
        progress: ProgressKeeper,
        producers: BrokerProducers,
        making: SerialLock,
        restore: Callable[[BrokerTopic, StoredSubscription], None],
        forget: Callable[[BrokerTopic, Subscription | LiveSubscription], None],
    ) -> None:
        """`restore` adds a stored subscription to a topic; `forget` ends one here."""
        self._directory = directory
        self._topics = directory.known
        self._records = records
        self._progress = progress
        self._producers = producers
        self._making = making
        self._restore = restore
        self._forget = forget

    async def adopt(self, name: TopicName, *, was_here: bool) -> None:
        """Load a topic and its users. `was_here`: no other broker has owned it since this one stored its records.

        Only then the copy next to the data says what the store has lost; otherwise it is older than the store. The
        records of an adopted topic are copied with the next round.
        """
        async with self._making:
            if name in self._topics:
                return
            if not was_here:
                await self._records.forget_copies(name)
            elif lost := await self._records.recover_topic(name):
                _log.error("%s: the metadata store has lost %d of its records: put back", name, lost)
            if await self._directory.adopt(name) is not None:
                self.restore(await StoredUsers.of_topic(self._records, name))

    def restore(self, users: StoredUsers) -> None:
        """Add the users of known topics."""
        for producer in users.producers():
            if (found := self._topics.get(producer.topic)) is not None:
                self._producers.add(Producer(producer.id, producer.name, found, producer.owner))
        for stored in users.subscriptions():
            if (found := self._topics.get(stored.topic)) is not None:
                self._restore(found, stored)

    def end_streams(self, name: TopicName) -> None:
        """End all streams of a topic. Its cursors stay as they are."""
        topic = self._topics.get(name)
        for subscription in () if topic is None else topic.subscriptions.values():
            for consumer in subscription.consumers.values():
                if consumer.stream is not None:
                    consumer.stream.end()

    async def release(self, name: TopicName, *, stores_cursors: bool) -> None:
        """Forget a topic here. If its cursors cannot be stored, only its streams have ended.

        The gate refuses the topic from now on. Without `stores_cursors`, another broker owns it already.
        """
        self.end_streams(name)
        if stores_cursors:
            await self._progress.flush()
        async with self._making, self._progress.held():
            topic = self._topics.remove(name)
            self._progress.forget(str(name))
            if topic is None:
                return
            for subscription in topic.subscriptions.values():
                self._forget(topic, subscription)
            self._producers.forget(topic.producers.values())
            await topic.close()
        await self._records.forget_copies(name)
