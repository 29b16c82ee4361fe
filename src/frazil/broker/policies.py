"""Policies of subscriptions: checked, stored and put in force, with the topics that their dead letters go to.

Without security, a dead-letter topic is created with its first letter. With security, that of a policy is created when
the policy is set, by the rights and within the quota of the caller. If it is deleted later, it is not created again:
the message is kept, and tried again until somebody who may has created the topic. Dead letters that the settings of the
broker ask for, and no caller, still create their topic.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from frazil.broker.delivery.own_policy import OwnPolicy
from frazil.broker.delivery.policy import DeliveryPolicy
from frazil.broker.serial import SerialLock, to_its_end
from frazil.broker.store.known_records import records_of
from frazil.broker.store.policies import check_takes_letters, with_policy
from frazil.broker.store.progress import ProgressKeeper
from frazil.broker.store.records import Records, Stored
from frazil.broker.subscriptions.subscription import Subscription
from frazil.broker.topics.dead_letters import letters_of
from frazil.broker.topics.directory import Directory
from frazil.broker.topics.topic import BrokerTopic
from frazil.core.names import TopicName
from frazil.log.storage import Storage
from frazil.meta.broker_keys import SUBSCRIPTIONS, progress_key, topic_key

PolicyChange = Callable[[OwnPolicy], OwnPolicy]
"""Gets the previous policy of a subscription, and returns the new one."""


class SubscriptionPolicies:
    """Used on the broker's event loop."""

    def __init__(
        self,
        storage: Storage,
        directory: Directory,
        records: Records,
        progress: ProgressKeeper,
        defaults: DeliveryPolicy,
        making: SerialLock,
        on_demand: bool,
    ) -> None:
        """`making` serialises changes of topics and their users. `on_demand`: without security, see above."""
        self._storage = storage
        self._directory = directory
        self._records = records
        self._progress = progress
        self._defaults = defaults
        self._making = making
        self._on_demand = on_demand

    def creates_letters(self, subscription: Subscription) -> bool:
        """Whether the topic of its dead letters is created with the first of them."""
        return self._on_demand or not subscription.own_policy.sends_letters

    def checked(self, topic: BrokerTopic, name: str, change: PolicyChange) -> OwnPolicy:
        """Return the policy that `set` would store, or raise why it would not."""
        own = change(with_policy(topic, name).own_policy)
        own.check(topic.name, self._defaults)
        return own

    async def set(
        self, topic: BrokerTopic, name: str, change: PolicyChange, letters: TopicName | None = None
    ) -> Subscription:
        """Durable when it returns, and effective from then on. A refused policy changes nothing.

        `letters` is its dead-letter topic, if that is created with it: both or neither; raises `TopicExists`.
        """
        async with self._making, self._progress.held():
            self._directory.known.check_still_there(topic)
            found, own = with_policy(topic, name), self.checked(topic, name, change)
            assert letters in (None, letters_of(topic.name, own))
            if own.dead_letter_topic is not None or (own.sends_letters and not self._on_demand):
                await check_takes_letters(self._storage, letters_of(topic.name, own), self._directory.known)
            await to_its_end(self._store(topic, found, own, letters))
        return found

    async def _store(self, topic: BrokerTopic, found: Subscription, own: OwnPolicy, letters: TopicName | None) -> None:
        key = topic_key(SUBSCRIPTIONS, topic.name, found.name)
        before, after = (_record(found, one) for one in (found.own_policy, own))
        try:
            if letters is None:
                await self._records.put_all({key: after})
            else:
                await self._directory.create(letters, 0, True, None, {key: after}, instead={key: before})
        except BaseException:  # it may still have been stored
            of = progress_key(found.name, topic.name)
            self._progress.store_again(of, topic.name, partial(records_of, topic, found))
            raise
        found.set_policy(own, self._defaults)


def _record(subscription: Subscription, own: OwnPolicy) -> Stored:
    return {"kind": str(subscription.kind), "policy": own.stored()}
