"""Producers: known by name and id permanently, and stored before they are used.

With security on, a producer belongs to the principal that has created it, and each principal has its own names: so no
caller takes over the producer of another, or learns of it. A producer without an owner was created without security:
any caller that may publish to its topic may use it.
"""

from __future__ import annotations

from collections.abc import Iterable

from frazil.broker.checks import check_fits, check_name, new_id
from frazil.broker.clients import Producer, is_of, producer_names, producer_of
from frazil.broker.serial import SerialLock
from frazil.broker.store.records import Records
from frazil.broker.topics.directory import Directory
from frazil.core.errors import TopicNotFound, UnknownClient
from frazil.core.names import TopicName
from frazil.meta.broker_keys import PRODUCERS, topic_key


class BrokerProducers:
    """Used on the broker's event loop. `making` serialises changes of topics and their users."""

    def __init__(self, directory: Directory, records: Records, making: SerialLock) -> None:
        self._directory = directory
        self._topics = directory.known
        self._records = records
        self._making = making
        self._by_id: dict[int, Producer] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def check(self, topic: str, name: str, *, reliable: bool, owner: str | None = None) -> TopicName:
        """Refuse what `create` would refuse, without changes."""
        parsed = TopicName.parse(topic)
        check_name("producer_name", name)
        check_fits("producer_name", topic_key(PRODUCERS, parsed, *producer_names(name, owner)))
        known = self._topics.get(parsed)
        if known is None:
            self._directory.check_partitioning(parsed)
        else:
            known.check_dispatch(reliable=reliable)
        return parsed

    async def create(
        self, topic: str, name: str, *, reliable: bool, owner: str | None = None, create: bool = True
    ) -> Producer:
        """Return the known producer, or create it. With `create`, the topic is created if it does not exist."""
        parsed = self.check(topic, name, reliable=reliable, owner=owner)
        if (known := producer_of(self._topics.get(parsed), name, owner)) is not None:
            return known  # also while the metadata store is unavailable
        async with self._making:
            found = self._topics.get(parsed)
            if found is not None:
                found.check_dispatch(reliable=reliable)
            producer = producer_of(found, name, owner)
            if producer is None:
                if found is None and not (create or reliable):  # without a log, to open it would be to create it
                    raise TopicNotFound(topic)
                number = new_id(self._by_id)
                record = {topic_key(PRODUCERS, parsed, *producer_names(name, owner)): {"id": number}}
                if found is None:
                    found = await self._directory.add(parsed, reliable=reliable, create=create, also=record)
                else:
                    await self._records.put_all(record)
                producer = Producer(number, name, found, owner)
                self.add(producer)
        return producer

    def add(self, producer: Producer) -> None:
        producer.topic.producers[producer.key] = producer
        self._by_id[producer.id] = producer

    def find(self, number: int) -> Producer | None:
        return self._by_id.get(number)

    def get(self, number: int, caller: str | None = None) -> Producer:
        """Raises `UnknownClient`, which means: create it again. The same for the producer of another principal."""
        found = self._by_id.get(number)
        if found is None or not is_of(found.owner, caller):
            raise UnknownClient("producer", number)
        return found

    def forget(self, producers: Iterable[Producer]) -> None:
        for producer in producers:
            del self._by_id[producer.id]
