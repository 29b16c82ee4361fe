"""The broker: topics with their producers and subscriptions, behind whatever doors.

Everything runs on one event loop. What must outlive a restart is in `Records` before a call returns; messages of
reliable topics are in the log, durable, before `send` returns.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from frazil.broker.choice import Kind
from frazil.broker.consumer import Consumer, Stream
from frazil.broker.counts import BrokerCounts
from frazil.broker.cursor import Cursor
from frazil.broker.dead_letters import dead_letter, dead_letter_topic
from frazil.broker.figures import SubscriptionFigures, figures_of
from frazil.broker.live import LiveSubscription
from frazil.broker.places import PlaceKeeper
from frazil.broker.progress import ProgressKeeper, restored
from frazil.broker.records import (
    CONSUMERS,
    PRODUCERS,
    SUBSCRIPTIONS,
    TOPICS,
    Records,
    progress_key,
    topic_key,
)
from frazil.broker.rules import DeliveryRules
from frazil.broker.subscription import Delivery, Subscription
from frazil.broker.topic import BrokerTopic
from frazil.core.broker_settings import BrokerSettings, Poison
from frazil.core.clock import Clock
from frazil.core.errors import (
    Closed,
    FrazilError,
    InvalidInput,
    PartitioningDiffers,
    SubscriptionNotFound,
    SubscriptionTaken,
    TopicDiffers,
    TopicExists,
    TopicInUse,
    TopicNotFound,
    TryLater,
    UnknownClient,
)
from frazil.core.names import TopicName
from frazil.core.settings import RetentionSettings
from frazil.log.storage import Storage
from frazil.meta.store import MetaStore

NAME_LENGTH_MAX = 255
FILTERS_MAX, FILTER_LENGTH_MAX = 100, 255
ID_MAX = 2**63 - 1

_log = logging.getLogger("frazil.broker")


@dataclass(slots=True)
class Producer:
    id: int
    name: str
    topic: BrokerTopic


@dataclass(slots=True)
class _Place:
    """Where a consumer belongs."""

    topic: BrokerTopic
    subscription: Subscription | LiveSubscription
    consumer: Consumer


class Broker:
    """Made and used on one event loop: `await start()` first, `await close()` last."""

    def __init__(
        self,
        storage: Storage,
        meta: MetaStore,
        settings: BrokerSettings,
        clock: Clock,
        on_deleted: Callable[[TopicName], None] = lambda _: None,
    ) -> None:
        """`on_deleted` is called, in a thread, before what is stored of a topic goes: something else may go first."""
        self._storage = storage
        self._on_deleted = on_deleted
        self._records = Records(meta)
        self._rules = DeliveryRules.of(settings)
        self._clock = clock
        self._progress = ProgressKeeper(self._records, settings.progress_flush_ms)
        self._topics: dict[TopicName, BrokerTopic] = {}
        self._places = PlaceKeeper(self._topics.values, self._placed)
        self._producers: dict[int, Producer] = {}
        self._consumers: dict[int, _Place] = {}
        self._making = asyncio.Lock()
        self._closing = False
        self.counts = BrokerCounts()

    async def start(self) -> None:
        """Everything that was known before. Cursors go on where they were stored."""
        for (namespace, topic), value in (await self._records.list(TOPICS)).items():
            parsed = TopicName(namespace, topic)
            try:
                self._topics[parsed] = await self._opened(parsed, bool(value["reliable"]))
                await self._introduce(self._topics[parsed], value)
            except FrazilError as error:
                _log.error("%s: its producers and subscriptions wait until it can be opened: %s", parsed, error)
        for (namespace, topic, producer), value in (await self._records.list(PRODUCERS)).items():
            if (found := self._topics.get(TopicName(namespace, topic))) is not None:
                self._add_producer(Producer(int(value["id"]), producer, found))
        consumers = await self._records.list(CONSUMERS)
        for (namespace, topic, name), value in (await self._records.list(SUBSCRIPTIONS)).items():
            if (found := self._topics.get(TopicName(namespace, topic))) is None:
                continue
            subscription = await self._restored(found, name, Kind(value["kind"]))
            for (*place, consumer), known in consumers.items():
                if place == [namespace, topic, name]:
                    self._add_consumer(found, subscription, Consumer(consumer, int(known["id"]), known["key_filters"]))
            subscription.start()
        self._progress.start()
        self._places.start()

    def end_streams(self) -> None:
        """No new work; what is on its way is answered still."""
        self._closing = True
        for place in self._consumers.values():
            if place.consumer.stream is not None:
                place.consumer.stream.end()

    async def close(self) -> None:
        """Cursors are stored."""
        self.end_streams()
        await self._places.close()
        for topic in self._topics.values():
            await topic.close()
        await self._progress.close()
        self._records.close()

    # --- topics

    def knows(self, name: TopicName) -> bool:
        return name in self._topics

    async def make_known(self, topic: str) -> None:
        """A topic that the storage has, for subscriptions; one of another door may be here for the first time."""
        self._check_open()
        parsed = TopicName.parse(topic)
        if parsed not in self._topics:
            await asyncio.to_thread(self._storage.topic, str(parsed), create=False)
            await self._topic(parsed, reliable=True)

    def partitions(self, name: TopicName) -> list[str]:
        """The topic itself, or its partitions in their order; nothing if neither is known."""
        if name in self._topics:
            return [str(name)]
        parts = [one for one in self._topics if one != name and one.partition_of()[0] == name]
        return [str(one) for one in sorted(parts, key=lambda one: one.partition_of()[1])]

    def acked(self, name: TopicName) -> int:
        """Up to where every subscription has acknowledged, durably; nothing if there is none. From any thread."""
        topic = self._topics.get(name)
        known = list(topic.subscriptions.values()) if topic is not None else []
        return min((one.cursor.durable_end for one in known if isinstance(one, Subscription)), default=0)

    def figures(self) -> list[SubscriptionFigures]:
        """How each subscription stands. From any thread."""
        return [
            figures_of(topic, subscription)
            for topic in list(self._topics.values())
            for subscription in list(topic.subscriptions.values())
        ]

    @property
    def producer_count(self) -> int:
        return len(self._producers)

    async def _topic(self, name: TopicName, *, reliable: bool) -> BrokerTopic:
        async with self._making:
            topic = self._topics.get(name)
            if topic is None:
                self._check_partitioning(name)
                topic = await self._opened(name, reliable, create=True)
                await self._introduce(topic, await self._records.get(topic_key(TOPICS, name)))
                self._topics[name] = topic
        if topic.reliable is not reliable:
            have, want = (("reliable" if each else "non-reliable") for each in (topic.reliable, reliable))
            raise TopicDiffers(str(name), f"its dispatch is {have}, not {want}")
        return topic

    def _check_partitioning(self, name: TopicName) -> None:
        base, _ = name.partition_of()
        if base != name and base in self._topics:
            raise PartitioningDiffers(str(base), "without partitions")
        if base == name and self.partitions(name):
            raise PartitioningDiffers(str(name), "with partitions")

    async def _opened(self, name: TopicName, reliable: bool, *, create: bool = False) -> BrokerTopic:
        log = await asyncio.to_thread(self._storage.topic, str(name), create=create) if reliable else None
        if log is not None:
            log.check_is_message_topic()
        return BrokerTopic(name, log)

    async def _introduce(self, topic: BrokerTopic, known: dict[str, Any] | None) -> None:
        """With what is stored of its name: what is of another log, which was deleted without us, is forgotten."""
        log_id = topic.feed.topic.log.log_id if topic.feed is not None else None
        if known is not None and known.get("log_id") not in (None, log_id):
            _log.warning("%s was deleted and made again: what is known of the old one is forgotten", topic.name)
            await self._forget(topic.name)
        value = {"reliable": topic.reliable, "log_id": log_id}
        if value != known:
            await self._records.put(topic_key(TOPICS, topic.name), value)

    async def _forget(self, name: TopicName) -> None:
        await asyncio.to_thread(self._on_deleted, name)
        await self._records.delete_topic(name)

    # --- producers

    async def create_producer(self, topic: str, name: str, *, reliable: bool) -> Producer:
        """The same producer again if it is known. The topic is made if it is not there."""
        self._check_open()
        parsed = TopicName.parse(topic)
        _check_name("producer_name", name)
        found = await self._topic(parsed, reliable=reliable)
        async with self._making:
            self._check_still_there(found)
            producer = found.producers.get(name)
            if producer is None:
                producer = Producer(_new_id(self._producers), name, found)
                await self._records.put(topic_key(PRODUCERS, parsed, name), {"id": producer.id})
                self._add_producer(producer)
        return producer

    def producer(self, number: int) -> Producer:
        """`UnknownClient` says: create it again."""
        self._check_open()
        found = self._producers.get(number)
        if found is None:
            raise UnknownClient("producer", number)
        return found

    def has_producer(self, number: int) -> bool:
        return not self._closing and number in self._producers

    def _add_producer(self, producer: Producer) -> None:
        producer.topic.producers[producer.name] = producer
        self._producers[producer.id] = producer

    # --- consumers

    async def subscribe(
        self, topic: str, subscription: str, kind: Kind, consumer: str, key_filters: Sequence[str] = ()
    ) -> int:
        """The id of the consumer, known or new. A new subscription begins at what is published next."""
        self._check_open()
        parsed = TopicName.parse(topic)
        _check_name("subscription", subscription)
        _check_name("consumer_name", consumer)
        _check_filters(key_filters)
        found = self._topics.get(parsed)
        if found is None:
            raise TopicNotFound(topic)
        async with self._making:
            self._check_still_there(found)
            known = found.subscriptions.get(subscription)
            if known is None:
                known = await self._new_subscription(found, subscription, kind)
            mine = known.consumers.get(consumer)
            if mine is None:
                if known.kind is Kind.EXCLUSIVE and known.consumers:
                    raise SubscriptionTaken(topic, subscription, next(iter(known.consumers)))
                mine = Consumer(consumer, _new_id(self._consumers), key_filters)
                await self._store_consumer(parsed, subscription, mine)
                self._add_consumer(found, known, mine)
            elif mine.key_filters != tuple(key_filters):
                mine.key_filters = tuple(key_filters)
                await self._store_consumer(parsed, subscription, mine)
            if mine.stream is not None:
                known.disconnect(mine, mine.stream)  # whoever subscribes again takes over
        return mine.id

    def connect(self, number: int) -> tuple[BrokerTopic, Subscription | LiveSubscription, Consumer, Stream]:
        self._check_open()
        place = self._consumers.get(number)
        if place is None:
            raise UnknownClient("consumer", number)
        return place.topic, place.subscription, place.consumer, place.subscription.connect(place.consumer)

    def has_consumer(self, number: int) -> bool:
        """Connected or not: it is asked for before the stream is opened, and while it is opened anew."""
        return not self._closing and number in self._consumers

    def has_forgotten(self, number: int) -> bool:
        """Of a consumer that was there: it went with its subscription, or its topic."""
        return number not in self._consumers

    def subscription(self, topic: str, name: str) -> Subscription | LiveSubscription:
        """For answers, which name no consumer."""
        self._check_open()
        parsed = TopicName.parse(topic)
        found = self._topics.get(parsed)
        known = found.subscriptions.get(name) if found is not None else None
        if known is None:
            raise (
                TopicNotFound(topic)
                if found is None
                else InvalidInput(
                    f"subscription_name: {topic} has no subscription {name!r:.80}", field="subscription_name"
                )
            )
        return known

    async def _new_subscription(self, topic: BrokerTopic, name: str, kind: Kind) -> Subscription | LiveSubscription:
        made = self._made(topic, name, kind, Cursor(topic.end))
        if isinstance(made, Subscription):
            await self._records.put(progress_key(name, topic.name), {"offset": made.cursor.end, "acked": []})
        await self._records.put(topic_key(SUBSCRIPTIONS, topic.name, name), {"kind": str(kind)})
        topic.subscriptions[name] = made
        made.start()
        return made

    async def _restored(self, topic: BrokerTopic, name: str, kind: Kind) -> Subscription | LiveSubscription:
        value = await self._records.get(progress_key(name, topic.name)) if topic.reliable else None
        cursor = Cursor(topic.end) if value is None else restored(value)
        if cursor.end > topic.end:
            _log.error("%s: subscription %s was at offset %d, and the log ends at %d: it goes on there",
                       topic.name, name, cursor.end, topic.end)  # fmt: skip
            cursor = Cursor(topic.end)
        made = topic.subscriptions[name] = self._made(topic, name, kind, cursor)
        return made

    def _made(self, topic: BrokerTopic, name: str, kind: Kind, cursor: Cursor) -> Subscription | LiveSubscription:
        if topic.feed is None:
            return LiveSubscription(name, kind)
        key = progress_key(name, topic.name)
        return Subscription(
            name, kind, cursor, topic.feed, self._rules, self._clock,
            lambda changed: self._progress.moved(key, changed.cursor),
            lambda subscription, delivery, reason: self._poisoned(topic, subscription, delivery, reason),
        )  # fmt: skip

    def _placed(self, topic: BrokerTopic, subscription: Subscription) -> None:
        self._progress.moved(progress_key(subscription.name, topic.name), subscription.cursor)

    def _add_consumer(
        self, topic: BrokerTopic, subscription: Subscription | LiveSubscription, consumer: Consumer
    ) -> None:
        subscription.consumers[consumer.name] = consumer
        self._consumers[consumer.id] = _Place(topic, subscription, consumer)

    async def _store_consumer(self, topic: TopicName, subscription: str, consumer: Consumer) -> None:
        value = {"id": consumer.id, "key_filters": list(consumer.key_filters)}
        await self._records.put(topic_key(CONSUMERS, topic, subscription, consumer.name), value)

    # --- messages that nobody acknowledges

    async def _poisoned(self, topic: BrokerTopic, subscription: Subscription, delivery: Delivery, reason: str) -> None:
        """When it returns the message may be forgotten: it was to be dropped, or is in the other topic."""
        if self._rules.poison is Poison.DROP:
            _log.warning("%s: subscription %s drops offset %d: %s",
                         topic.name, subscription.name, delivery.entry.offset, reason)  # fmt: skip
            return
        target = await self._topic(dead_letter_topic(topic.name), reliable=True)
        await target.publish(dead_letter(topic.name, subscription.name, delivery, reason))

    # --- for administrators, see `frazil.broker.admin`

    @property
    def topics(self) -> dict[TopicName, BrokerTopic]:
        return self._topics

    async def create_topics(
        self, names: Sequence[TopicName], *, reliable: bool, retention: RetentionSettings | None
    ) -> None:
        """All of them new, or none: `TopicExists`."""
        self._check_open()
        async with self._making:
            for name in names:
                if name in self._topics:
                    raise TopicExists(str(name))
                self._check_partitioning(name)
            if reliable:
                await asyncio.to_thread(create_logs, self._storage, names, retention)
            for name in names:
                topic = await self._opened(name, reliable)
                await self._introduce(topic, await self._records.get(topic_key(TOPICS, name)))
                self._topics[name] = topic

    async def delete_topic(self, name: TopicName, *, force: bool) -> None:
        """With everything that is known of it. What is stored goes before the log: a cursor never outlives it."""
        self._check_open()
        async with self._making:
            subscriptions, producers = await self._records.users(name)
            if not force and (subscriptions or producers):
                raise TopicInUse(str(name), subscriptions, producers)
            topic = self._topics.get(name)
            if topic is not None:
                for subscription in topic.subscriptions.values():
                    self._forget_consumers(topic, subscription)
                for producer in topic.producers.values():
                    del self._producers[producer.id]
                del self._topics[name]
                await topic.close()
            await self._forget(name)
            if topic is None or topic.reliable:
                await asyncio.to_thread(self._storage.delete_topic, str(name))

    async def delete_subscription(self, topic: BrokerTopic, name: str) -> None:
        """Its streams end. Whoever subscribes again by that name begins with what is published next."""
        self._check_open()
        async with self._making:
            subscription = topic.subscriptions.pop(name, None)
            if subscription is None:
                raise SubscriptionNotFound(str(topic.name), name)
            self._forget_consumers(topic, subscription)
            await subscription.close()
            await self._records.delete_subscription(topic.name, name)

    async def move_subscription(self, subscription: Subscription, offset: int) -> None:
        """Durable when it returns. If that fails it is in force all the same, and stored as soon as that can be."""
        self._check_open()
        subscription.move_to(offset)
        await self._progress.flush()

    def _forget_consumers(self, topic: BrokerTopic, subscription: Subscription | LiveSubscription) -> None:
        self._progress.forget(progress_key(subscription.name, topic.name))
        for consumer in subscription.consumers.values():
            del self._consumers[consumer.id]

    def _check_still_there(self, topic: BrokerTopic) -> None:
        if self._topics.get(topic.name) is not topic:
            raise TryLater(f"{topic.name} was deleted just now; try again")

    def _check_open(self) -> None:
        if self._closing:
            raise Closed("the broker")


def create_logs(storage: Storage, names: Sequence[TopicName], retention: RetentionSettings | None) -> None:
    """All or none."""
    made = []
    try:
        for name in names:
            storage.create_topic(str(name), retention=retention)
            made.append(name)
    except BaseException:
        for name in made:
            storage.delete_topic(str(name))
        raise


def _check_name(field: str, name: str) -> None:
    if not 0 < len(name) <= NAME_LENGTH_MAX:
        raise InvalidInput(f"{field}: must have 1 to {NAME_LENGTH_MAX} characters, not {len(name)}", field=field)


def _check_filters(filters: Sequence[str]) -> None:
    if len(filters) > FILTERS_MAX or any(len(one) > FILTER_LENGTH_MAX for one in filters):
        raise InvalidInput(
            f"key_filters: at most {FILTERS_MAX} of {FILTER_LENGTH_MAX} characters each", field="key_filters"
        )


def _new_id(known: dict[int, object] | dict[int, Producer] | dict[int, _Place]) -> int:
    while True:
        number = 1 + secrets.randbelow(ID_MAX)
        if number not in known:
            return number
