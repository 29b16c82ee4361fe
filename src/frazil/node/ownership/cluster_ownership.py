"""The ownership of topics among the brokers of a cluster, at one broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

from frazil.core.cluster import Balance, BrokerInfo, DrainReport, MoveCounts, PlannedMove
from frazil.core.errors import LogFenced, MetadataInUse, MetadataUnavailable, NotOwner, TopicUnavailable
from frazil.core.names import TopicName
from frazil.core.settings.cluster import ClusterSettings
from frazil.meta.topic_records import topic_record_key
from frazil.node.ownership.following import Following
from frazil.node.ownership.moves.leader import Leader
from frazil.node.ownership.moves.plan import place
from frazil.node.ownership.moves.requests import MoveRequests
from frazil.node.ownership.owned_topics import OwnedTopics
from frazil.node.ownership.records import OwnershipRecords
from frazil.node.ownership.session_keeper import SessionKeeper
from frazil.node.ownership.view import Changes, ClusterView

REFRESH_SECONDS_MAX = 8.0
CHECK_S = 0.2
"""How often a broker that leaves looks whether its topics have gone."""

_log = logging.getLogger("frazil.cluster")


class ClusterOwnership:
    """See `Ownership`. Made by `cluster_open`; the parts are its own from then on."""

    is_clustered = True

    def __init__(
        self,
        broker_id: str,
        settings: ClusterSettings,
        view: ClusterView,
        keeper: SessionKeeper,
        leader: Leader,
        owned: OwnedTopics,
        requests: MoveRequests,
        records: OwnershipRecords,
    ) -> None:
        self.broker_id = broker_id
        self._settings = settings
        self._view = view
        self._keeper = keeper
        self._leader = leader
        self._owned = owned
        self._requests = requests
        self._records = records
        self._loop = asyncio.get_running_loop()

    # --- queries

    @property
    def is_cut_off(self) -> bool:
        """Whether the metadata store does not answer: this broker may not hear that others have taken its topics."""
        return self._keeper.is_lost

    def owner_of(self, topic: TopicName) -> BrokerInfo | None:
        if self._owned.is_served(topic):
            return self._view.broker(self.broker_id)
        serving = self._view.serving(topic)
        return None if serving is None or serving.broker == self.broker_id else self._view.broker(serving.broker)

    def must_own(self, topic: TopicName) -> None:
        if self._owned.is_served(topic):
            return
        known = self._view.topic(topic)
        if known is None:
            return
        name = str(topic)
        if known.owner == self.broker_id:
            self._check_fenced(name, self._owned.fenced(topic))
            problem = self._owned.problem_of(topic)
            why = "it is being opened or moved" if problem is None else f"it cannot be opened yet: {problem}"
            raise TopicUnavailable(name, why)
        if self._view.is_gone(known.owner):
            if known.fails_over:
                takes = "another one takes it" if self._view.takers(known.owner) else "no other one can take it now"
                raise TopicUnavailable(name, f"its broker {known.owner or '(none)'} is gone; {takes}")
            advice = f"frazil topics move {name} --accept-loss"
            raise TopicUnavailable(
                name,
                f"its broker {known.owner or '(none)'} is gone, and has rows that were not uploaded: start that broker "
                f"again, or accept their loss with: {advice}",
            )
        owner = self._view.broker(known.owner)
        if not owner.addresses:
            raise TopicUnavailable(name, f"its broker {known.owner} is starting")
        raise NotOwner(name, known.owner, owner.addresses)

    def _check_fenced(self, topic: str, fenced: LogFenced | None) -> None:
        """Raise `NotOwner` for a topic that another broker has taken over, while this one is cut off from the records.

        The object store has said so. Otherwise the record is right: this broker may have got the topic back.
        """
        if fenced is None or not self.is_cut_off:
            return
        owner, address = str(fenced.fields["owner"]), str(fenced.fields["address"])
        addresses = self._view.broker(owner).addresses or ({"flight": address} if address else {})
        if owner != self.broker_id and addresses:
            raise NotOwner(topic, owner, addresses)

    def owns(self, topic: TopicName) -> bool:
        """Whether this broker owns the topic by its record, served or not.

        A topic that was lost and came back counts only once it was opened anew.
        """
        return self._owned.is_current(topic)

    def serves(self, topic: TopicName) -> bool:
        return self._owned.is_served(topic)

    def topics(self) -> Collection[TopicName]:
        return self._view.topics()

    def family(self, name: TopicName) -> Collection[TopicName]:
        return self._view.family(name)

    def refresh(self, topic: TopicName) -> None:
        reading = asyncio.run_coroutine_threadsafe(self._records.read(topic), self._loop)
        try:
            reading.result(REFRESH_SECONDS_MAX)
        except TimeoutError:
            reading.cancel()
            reason = f"the record of {topic} was not read within {REFRESH_SECONDS_MAX:.0f} s"
            raise MetadataUnavailable(topic_record_key(topic), reason) from None

    def elsewhere(self, name: TopicName) -> Mapping[TopicName, str | None]:
        known = {one: self._view.topic(one) for one in self._view.family(name)}
        return {
            one: state.log_id for one, state in known.items() if state is not None and state.owner != self.broker_id
        }

    def brokers(self) -> list[BrokerInfo]:
        return self._view.brokers()

    def leader(self) -> str | None:
        found = self._view.leader()
        return None if found is None else found.broker

    def balance(self) -> Balance:
        return self._view.balance()

    @property
    def counts(self) -> MoveCounts:
        return self._owned.counts

    def problems(self) -> Mapping[TopicName, str]:
        """Return why topics of this broker could not be opened, given away or discarded, and are tried again."""
        return self._owned.problems()

    # --- calls

    async def move(self, topic: TopicName, to: str | None = None, *, accept_loss: bool = False) -> None:
        await self._requests.move(topic, to, accept_loss=accept_loss)

    async def drain(self, broker_id: str, *, timeout_ms: int | None = None, parallel_max: int = 4) -> DrainReport:
        return await self._requests.drain(broker_id, timeout_ms, parallel_max)

    async def activate(self, broker_id: str) -> None:
        await self._requests.activate(broker_id)

    async def rebalance(self, *, dry_run: bool = False, moves_max: int | None = None) -> list[PlannedMove]:
        return await self._requests.rebalance(dry_run=dry_run, moves_max=moves_max)

    # --- for the node

    def start(self) -> None:
        """Open the topics whose records name this broker, and follow all changes from now on."""
        self._owned.start()
        self._leader.start()

    async def created(self, topic: TopicName) -> None:
        """Return when a topic that this broker has just created is served."""
        await self._owned.until_served(topic)

    def failed(self, topic: TopicName, error: Exception) -> None:
        """A served topic has stopped by itself, as after `LogFenced`. Any thread may call it.

        Calls are refused until the topic is opened again, or its new owner is known.
        """
        self._loop.call_soon_threadsafe(self._owned.failed, topic, error)

    async def settled(self) -> None:
        """Wait until all topics of this broker are open, or have failed once."""
        await self._owned.settled()

    async def leave(self) -> None:
        """Give the topics of this broker away, as the first step of its end, for at most `cluster.drain_ms_max`.

        What cannot be given in time stays: it waits for this broker, or fails over when the session ends. Clients that
        look up owners at their old broker alone, as Danube's do, have `cluster.linger_ms` to ask.
        """
        await self._keeper.stopping()
        ends = self._loop.time() + self._settings.drain_ms_max / 1_000
        given: dict[TopicName, str] = {}
        while (left_s := ends - self._loop.time()) > 0:
            topics = self._view.owned_by(self.broker_id)
            targets = self._view.takers(self.broker_id)
            if not topics or not targets:
                break
            fresh = [topic for topic in topics if topic not in given or self._view.is_gone(given[topic])]
            placed = place(fresh, targets, self._view.load_of)
            given |= placed
            if placed:
                self._owned.give(placed)
            if not any(map(self._owned.is_giving, topics)):
                break  # the others could not be given away
            await asyncio.sleep(min(CHECK_S, left_s))
        left = len(self._view.owned_by(self.broker_id))
        if left:
            _log.warning("%d topics stay with this broker, which ends", left)
        if given and (left_s := ends - self._loop.time()) > 0:
            await asyncio.sleep(min(self._settings.linger_ms / 1_000, left_s))

    def changed(self, changes: Changes) -> None:
        """Act on changes of the view."""
        self._owned.look_at(changes.topics)
        self._requests.changed(changes.topics)
        if self.broker_id in changes.brokers and self._view.is_gone(self.broker_id):
            self._keeper.look_now()
        if changes.brokers or changes.leader or any(map(self._concerns_leader, changes.topics)):
            self._leader.wake()

    def _concerns_leader(self, topic: TopicName) -> bool:
        known = self._view.topic(topic)
        return self._view.move(topic) is not None or (known is not None and self._view.is_gone(known.owner))

    async def close(self, following: Following) -> None:
        """Stop following the cluster; the session is ended by its keeper."""
        await self._leader.close()
        await following.close()
        await self._owned.close()


def broker_in_use(broker_id: str, where: str, prefix: str, holder: str) -> MetadataInUse:
    advice = f"stop it first, or give each broker its own `cluster.broker_id`; this one is {broker_id}"
    return MetadataInUse(where, prefix, holder, advice)
