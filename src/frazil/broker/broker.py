"""The broker: topics with their producers and subscriptions, independent of protocols.

Everything runs on one event loop. State that must survive a restart is in `Records` before a call returns; messages of
reliable topics are durable in the log before `send` returns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from frazil.broker.adoption import TopicAdoption
from frazil.broker.checks import check_filters, check_fits, check_name, new_id
from frazil.broker.clients import OPEN, Caller, ConsumerPlace, Producer, is_of
from frazil.broker.counts import BrokerCounts
from frazil.broker.delivery.assignment import Kind
from frazil.broker.delivery.own_policy import OwnPolicy
from frazil.broker.delivery.policy import DeliveryPolicy
from frazil.broker.delivery.progress import Progress
from frazil.broker.policies import SubscriptionPolicies
from frazil.broker.producers import BrokerProducers
from frazil.broker.queries import BrokerQueries
from frazil.broker.serial import SerialLock, to_its_end
from frazil.broker.store.cluster import Cluster
from frazil.broker.store.companion import Companion
from frazil.broker.store.known_records import records_of, records_of_all, records_of_topic
from frazil.broker.store.places import PlaceKeeper
from frazil.broker.store.policies import own_policy
from frazil.broker.store.progress import ProgressKeeper, restored_place, stored_form
from frazil.broker.store.records import Records, Stored, stored_consumer
from frazil.broker.store.startup import StoredSubscription, StoredUsers
from frazil.broker.subscriptions.consumer import Consumer, Stream
from frazil.broker.subscriptions.live import LiveSubscription
from frazil.broker.subscriptions.subscription import Subscription, new_incarnation
from frazil.broker.topics.dead_letters import HEADERS_BYTES_MAX, dead_letter, letters_of
from frazil.broker.topics.directory import Directory
from frazil.broker.topics.entry import Entry
from frazil.broker.topics.identities import OwnedLog, TopicMoved
from frazil.broker.topics.topic import BrokerTopic
from frazil.core.clock import Clock
from frazil.core.errors import (
    Closed,
    CorruptLog,
    InvalidInput,
    SchemaMismatch,
    SubscriptionNotFound,
    SubscriptionTaken,
    TopicInUse,
    TopicNotFound,
    UnknownClient,
)
from frazil.core.names import TopicName
from frazil.core.offsets import Place
from frazil.core.partitions import topic_or_partitions
from frazil.core.settings import RetentionSettings
from frazil.core.settings.broker import BrokerSettings
from frazil.log.storage import Storage
from frazil.meta.broker_keys import CONSUMERS, SUBSCRIPTIONS, progress_key, topic_key
from frazil.meta.store import MetaStore

_log = logging.getLogger("frazil.broker")


class Broker(BrokerQueries):
    """Created and used on one event loop: `await start()` first, `await close()` last."""

    def __init__(
        self,
        storage: Storage,
        meta: MetaStore,
        settings: BrokerSettings,
        clock: Clock,
        companion: Companion | None = None,
        copy: MetaStore | None = None,
        *,
        letters_on_demand: bool = True,
        cluster: Cluster | None = None,
    ) -> None:
        """`companion` says what else is stored with a topic. `copy` is kept next to the data. In a `cluster`, topics
        are known from `adopt` to `release`.

        `letters_on_demand`: the dead-letter topic of a policy is created with its first letter.
        """
        self._storage = storage
        self._records = Records(meta, copy)
        self._directory = Directory(storage, self._records, companion or Companion(), meta, clock, cluster)
        self._cluster = cluster
        self.identities = self._directory.identities
        self._topics = self._directory.known
        self._policy = DeliveryPolicy.of(settings)
        self._clock = clock
        self._progress = ProgressKeeper(self._records, settings.progress_flush_ms, cluster)
        self._making = SerialLock()
        self.policies = SubscriptionPolicies(
            storage, self._directory, self._records, self._progress, self._policy, self._making, letters_on_demand
        )
        self._places = PlaceKeeper(lambda topic, one: self._progress.moved(progress_key(one.name, topic.name), one))
        self._producers = BrokerProducers(self._directory, self._records, self._making)
        self._adoption = TopicAdoption(
            self._directory, self._records, self._progress, self._producers, self._making,
            self._restore, self._forget_consumers,
        )  # fmt: skip
        self._consumers: dict[int, ConsumerPlace] = {}
        self._closing = False
        self.loop: asyncio.AbstractEventLoop | None = None
        self.counts = BrokerCounts()
        self.address = ""
        """The address for Danube clients, once the server listens."""

    async def start(self) -> None:
        """Everything that was known before. Cursors go on where they were stored."""
        self.loop = asyncio.get_running_loop()
        if self._cluster is None:
            if lost := await self._records.recover(await self._directory.all_stored()):
                _log.error("the metadata store has lost %d records, as if restored from an older copy: put back", lost)
            await self._directory.restore()
            self._adoption.restore(await StoredUsers.read(self._records))
        self._progress.start()
        self._places.start()

    def end_streams(self) -> None:
        """Accept no new work; calls in progress are still answered."""
        self._closing = True
        for place in self._consumers.values():
            if place.consumer.stream is not None:
                place.consumer.stream.end()

    async def close(self) -> None:
        """Store the cursors. If that fails, recently acknowledged messages are redelivered."""
        self.end_streams()
        await self._places.close()
        for topic in self._topics.values():
            await topic.close()
        await self._progress.close()
        await self._directory.close()
        self._records.close()

    async def store_again(self) -> None:
        """Store the whole state again, for a metadata store that was restored from an older backup."""
        async with self._making, self._progress.held():
            topics = [topic for topic in self._topics.values() if not self._is_elsewhere(topic.name)]
            await self._records.put_all(records_of_all(topics))
        await asyncio.to_thread(self.identities.carry_over_now)

    def _is_elsewhere(self, name: TopicName) -> bool:
        """Whether another broker owns a topic that this one is about to let go."""
        return self._cluster is not None and name in self._cluster.family(name) and not self._cluster.owns(name)

    async def copy_all(self) -> None:
        """Store the whole state in the copy next to the data."""
        async with self._making:
            await self._records.copy_all(records_of_all(self._topics.values()))

    # --- topics

    async def adopt(self, name: TopicName, *, was_here: bool) -> None:
        """Serve a topic that this broker owns by now, see `TopicAdoption.adopt`."""
        self.check_open()
        await self._adoption.adopt(name, was_here=was_here)

    async def release(self, name: TopicName, *, stores_cursors: bool = True) -> None:
        """Let a topic go that another broker gets, see `TopicAdoption.release`."""
        await self._adoption.release(name, stores_cursors=stores_cursors)

    async def make_known(self, topic: str) -> None:
        """Register a topic of the storage for subscriptions; it may have been created by another protocol."""
        self.check_open()
        parsed = TopicName.parse(topic)
        if parsed not in self._topics:
            await self._topic(parsed, reliable=True, create=False)

    async def discover(self, name: TopicName) -> list[str]:
        """Like `partitions`, but also registers topics that only the log knows, created by another protocol or on the
        folder."""
        stored = await self._directory.here(name)
        for one in topic_or_partitions(name, stored):
            try:
                if one in stored and (self._cluster is None or self._cluster.serves(one)):
                    await self.make_known(str(one))
            except (CorruptLog, SchemaMismatch, TopicNotFound) as error:
                _log.warning("%s is left out for clients of %s: %s", one, name, error)
        return self.partitions(name)

    async def _topic(self, name: TopicName, *, reliable: bool, create: bool = True) -> BrokerTopic:
        topic = self._topics.get(name)
        if topic is None:
            await self._until_opened(name)
            async with self._making:
                topic = self._topics.get(name)
                if topic is None:
                    topic = await self._directory.add(name, reliable=reliable, create=create)
            await self.until_served([name])
        topic.check_dispatch(reliable=reliable)
        return topic

    async def until_served(self, names: Iterable[TopicName]) -> None:
        """Wait until topics that were just created, or first used, are served; at once without a cluster."""
        if self._cluster is not None:
            for name in names:
                if not self._cluster.serves(name):
                    await self._cluster.created(name)

    async def _until_opened(self, name: TopicName) -> None:
        """Wait until a topic is served that is in the folder, and may have been created by another protocol."""
        if self._cluster is not None and name in await self._directory.here(name):
            await self.until_served([name])

    # --- producers

    def check_producer(self, topic: str, name: str, *, reliable: bool, owner: str | None = None) -> None:
        """Refuse what `create_producer` would refuse, without changes."""
        self.check_open()
        self._producers.check(topic, name, reliable=reliable, owner=owner)

    async def create_producer(
        self, topic: str, name: str, *, reliable: bool, owner: str | None = None, create: bool = True
    ) -> Producer:
        """Return the known producer, or create it. With `create`, the topic is created if it does not exist."""
        self.check_open()
        parsed = TopicName.parse(topic)
        is_new = parsed not in self._topics
        if is_new:
            await self._until_opened(parsed)
        made = await self._producers.create(topic, name, reliable=reliable, owner=owner, create=create)
        await self.until_served([made.topic.name] if is_new else [])
        return made

    def producer(self, number: int, caller: str | None = None) -> Producer:
        """Raises `UnknownClient`, also for the producer of another principal."""
        self.check_open()
        return self._producers.get(number, caller)

    # --- consumers

    async def subscribe(
        self,
        topic: str,
        subscription: str,
        kind: Kind,
        consumer: str,
        key_filters: Sequence[str] = (),
        caller: Caller = OPEN,
    ) -> int:
        """Return the id of the consumer, known or new. A new subscription begins with the next published message."""
        self.check_open()
        parsed = TopicName.parse(topic)
        check_name("subscription", subscription)
        check_name("consumer_name", consumer)
        keys = progress_key(subscription, parsed), topic_key(CONSUMERS, parsed, subscription, consumer)
        check_fits("consumer_name", *keys)
        check_filters(key_filters)
        found = self._topics.get(parsed)
        if found is None:
            raise TopicNotFound(topic)
        known = found.subscriptions.get(subscription)
        mine = None if known is None else known.consumers.get(consumer)
        if known is None or mine is None or caller.changes(mine, key_filters):
            async with self._making:  # otherwise nothing is stored, and no metadata store is needed
                self._topics.check_still_there(found)
                known, mine = await self._consumer_of(found, subscription, kind, consumer, key_filters, caller)
        known.end_stream(mine)  # an explicit subscribe takes over
        known.expect(mine)
        return mine.id

    async def _consumer_of(
        self,
        topic: BrokerTopic,
        subscription: str,
        kind: Kind,
        name: str,
        key_filters: Sequence[str],
        caller: Caller,
    ) -> tuple[Subscription | LiveSubscription, Consumer]:
        """Return the known or new consumer, stored with these filters."""
        known = topic.subscriptions.get(subscription)
        mine = None if known is None else known.consumers.get(name)
        if known is None:
            mine = Consumer(name, new_id(self._consumers), key_filters, caller.name)
            known = await self._new_subscription(topic, subscription, kind, mine)
        elif mine is None:
            if known.kind is Kind.EXCLUSIVE and known.consumers:
                raise SubscriptionTaken(str(topic.name), subscription, next(iter(known.consumers)))
            mine = Consumer(name, new_id(self._consumers), key_filters, caller.name)
            await self._records.put_all(stored_consumer(topic.name, subscription, mine))
            self._add_consumer(topic, known, mine)
        elif caller.changes(mine, key_filters):
            wanted = Consumer(mine.name, mine.id, key_filters, caller.owner_of(mine, topic.label, subscription))
            await self._records.put_all(stored_consumer(topic.name, subscription, wanted))
            mine.owner = wanted.owner
            known.set_filters(mine, key_filters)
        return known, mine

    def consumer(self, number: int, caller: str | None = None) -> ConsumerPlace:
        """Raises `UnknownClient`, also for the consumer of another principal."""
        self.check_open()
        place = self._consumers.get(number)
        if place is None or not is_of(place.consumer.owner, caller):
            raise UnknownClient("consumer", number)
        return place

    def connect(self, number: int) -> tuple[BrokerTopic, Subscription | LiveSubscription, Consumer, Stream]:
        place = self.consumer(number)
        return place.topic, place.subscription, place.consumer, place.subscription.connect(place.consumer)

    def subscription(self, topic: str, name: str) -> Subscription | LiveSubscription:
        """Look up for answers, which name no consumer."""
        self.check_open()
        found = self._topics.get(TopicName.parse(topic))
        if found is None:
            raise TopicNotFound(topic)
        if name not in found.subscriptions:
            problem = f"subscription_name: {topic} has no subscription {name!r:.80}"
            raise InvalidInput(problem, field="subscription_name")
        return found.subscriptions[name]

    async def _new_subscription(
        self, topic: BrokerTopic, name: str, kind: Kind, first: Consumer
    ) -> Subscription | LiveSubscription:
        """Create it with its first consumer, or not at all."""
        made = self._made(topic, name, kind, Progress(new_incarnation(), topic.end), OwnPolicy())
        records = stored_consumer(topic.name, name, first)
        records[topic_key(SUBSCRIPTIONS, topic.name, name)] = {"kind": str(kind)}
        if isinstance(made, Subscription):
            records[progress_key(name, topic.name)] = stored_form(made.progress())
        try:
            await self._records.put_all(records)
        except BaseException:
            await made.close()
            raise
        topic.subscriptions[name] = made
        self._add_consumer(topic, made, first)
        made.start()
        return made

    def _restore(self, topic: BrokerTopic, known: StoredSubscription) -> None:
        name, value = known.name, known.progress if topic.reliable else None
        progress = known.restored_progress(topic.end, new_incarnation, reliable=topic.reliable)
        own, place = own_policy(topic.name, name, known.value.get("policy")), restored_place(value or {})
        made = topic.subscriptions[name] = self._made(topic, name, Kind(known.value["kind"]), progress, own, place)
        for consumer in known.consumers:
            self._add_consumer(topic, made, consumer)
        if isinstance(made, Subscription):
            self._places.moved(topic, made)
        made.start()

    def _made(
        self,
        topic: BrokerTopic,
        name: str,
        kind: Kind,
        progress: Progress,
        own: OwnPolicy,
        place: Place | None = None,
    ) -> Subscription | LiveSubscription:
        if topic.feed is None:
            return LiveSubscription(name, kind)
        key = progress_key(name, topic.name)
        return Subscription(
            name, kind, progress, own, self._policy, topic.feed, self._clock,
            lambda changed: self._moved(key, topic, changed),
            lambda subscription, entry, attempts, reason: self._set_aside(topic, subscription, entry, attempts, reason),
            place,
        )  # fmt: skip

    def _moved(self, key: str, topic: BrokerTopic, subscription: Subscription) -> None:
        self._progress.moved(key, subscription)
        self._places.moved(topic, subscription)

    def _add_consumer(
        self, topic: BrokerTopic, subscription: Subscription | LiveSubscription, consumer: Consumer
    ) -> None:
        subscription.add(consumer)
        self._consumers[consumer.id] = ConsumerPlace(topic, subscription, consumer)

    # --- poison messages

    async def _set_aside(
        self, topic: BrokerTopic, subscription: Subscription, entry: Entry, attempts: int, reason: str
    ) -> None:
        """The dead letter is durable when it returns. It may be published twice if the topic is at another broker."""
        name = letters_of(topic.name, subscription.policy)
        letter = dead_letter(topic, subscription.name, entry, attempts, reason, self.address)
        if self._cluster is not None and await self._cluster.publish_elsewhere(name, letter):
            return
        creates = self.policies.creates_letters(subscription)
        target = await self._topic(name, reliable=True, create=creates)
        await target.publish_with_headers(letter, HEADERS_BYTES_MAX)

    # --- for administrators, see `frazil.broker.admin`

    async def create_topics(
        self,
        base: TopicName,
        partitions: int,
        *,
        reliable: bool,
        retention: RetentionSettings | None,
        also: Mapping[str, Stored] | None = None,
        ack: str | None = None,
    ) -> list[TopicName]:
        """Create a topic, or all its partitions, with the records `also`: all or nothing; `TopicExists`."""
        self.check_open()
        async with self._making:
            made = await self._directory.create(base, partitions, reliable, retention, also or {}, ack=ack)
        await self.until_served(made)
        return made

    async def delete_topic(self, name: TopicName, *, force: bool) -> None:
        """Delete the topic with all its state and partitions; or nothing, if one of them is in use."""
        self.check_open()
        async with self._making, self._progress.held(), self._directory.held(name):
            names = await self._directory.all_of(name)
            owned = await self._directory.owned(names)
            users = [await self._records.users(one) for one in names]
            subscriptions, producers = (sum(each) for each in zip(*users, strict=True))
            if not force and (subscriptions or producers):
                raise TopicInUse(str(name), subscriptions, producers)
            await to_its_end(self._delete_all(owned))

    async def _delete_all(self, owned: Mapping[TopicName, OwnedLog | None]) -> None:
        for one in reversed(list(owned)):
            stored = one not in self._topics or self._topics[one].reliable
            await self._remove(one, owned[one])
            if stored:
                await self._directory.delete_log(one)

    async def _remove(self, name: TopicName, owned: OwnedLog | None) -> None:
        """Remove all but the log, which is deleted later: a cursor never outlives its log. Stored state goes first.

        If another broker owns the topic by now, nothing is removed: neither its records nor its objects.
        """
        topic = self._topics.get(name)
        try:
            await self._directory.forget(name, owned)
        except TopicMoved:
            raise
        except BaseException:
            if topic is not None:
                self._progress.store_again(str(name), name, partial(records_of_topic, topic))
            raise
        self._topics.remove(name)
        self._progress.forget(str(name))
        if topic is not None:
            for subscription in topic.subscriptions.values():
                self._forget_consumers(topic, subscription)
            self._producers.forget(topic.producers.values())
            await topic.close()

    async def delete_subscription(self, topic: BrokerTopic, name: str) -> None:
        """Delete the subscription and end its streams. A new one of that name begins with the next
        published message."""
        self.check_open()
        async with self._making, self._progress.held():
            self._topics.check_still_there(topic)
            subscription = topic.subscriptions.get(name)
            if subscription is None:
                raise SubscriptionNotFound(str(topic.name), name)
            try:
                await self._records.delete_subscription(topic.name, name)  # first: if it fails, nothing has changed
            except BaseException:
                key = progress_key(name, topic.name)
                self._progress.store_again(key, topic.name, partial(records_of, topic, subscription))
                raise
            del topic.subscriptions[name]
            self._forget_consumers(topic, subscription)
            await subscription.close()

    async def move_subscription(self, topic: BrokerTopic, subscription: Subscription, offset: int) -> None:
        """Durable when it returns, and effective from then on. If it fails, the subscription continues as before."""
        self.check_open()
        key, wanted = progress_key(subscription.name, topic.name), Progress(new_incarnation(), offset)
        async with self._progress.held():
            self._topics.check_still_there(topic)
            if subscription.deleted:
                raise SubscriptionNotFound(str(topic.name), subscription.name)
            try:
                await self._records.put(key, stored_form(wanted))
            except BaseException:
                self._progress.moved(key, subscription)  # it may still have been stored
                raise
            subscription.move_to(wanted)

    def _forget_consumers(self, topic: BrokerTopic, subscription: Subscription | LiveSubscription) -> None:
        subscription.end_at_once()
        self._progress.forget(progress_key(subscription.name, topic.name))
        self._places.forget(topic, subscription)
        for consumer in subscription.consumers.values():
            del self._consumers[consumer.id]

    def check_open(self) -> None:
        if self._closing:
            raise Closed("the broker")
