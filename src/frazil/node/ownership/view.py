"""What this broker knows of the cluster: the records of topics and brokers, indexed, as the metadata store has them.

Changed on the event loop alone; queries come from any thread and do no I/O. A change costs as much as what it changes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from frazil.core.cluster import Balance, BrokerInfo, BrokerState
from frazil.core.names import TopicName
from frazil.core.settings import AckLevel
from frazil.meta import cluster_keys as keys
from frazil.meta.store import ABSENT, Listing
from frazil.meta.topic_records import TOPIC_RECORDS, LogIdentity, TopicIdentity, UnreadableRecord, topic_record_key
from frazil.node.ownership.moves.load import TOPIC_LOAD

_log = logging.getLogger("frazil.cluster")
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class TopicState:
    """Who owns a topic or partition, by its record."""

    owner: str
    """Empty if the record names none."""
    epoch: int
    log_id: str | None
    fails_over: bool
    """Whether all acknowledged rows are in the object store, so that another broker may take the topic by itself."""


@dataclass(slots=True)
class Changes:
    """What a batch of changes was about."""

    topics: set[TopicName] = field(default_factory=set)
    """Topics whose record, requested move or serving broker has changed."""
    brokers: set[str] = field(default_factory=set)
    leader: bool = False


class ClusterView:
    def __init__(self) -> None:
        self._guard = threading.Lock()
        """For queries that iterate. Lookups of one key need none."""
        self._revisions: dict[str, int] = {}
        self._followed = {TOPIC_RECORDS: ABSENT, keys.CLUSTER: ABSENT}
        """All changes up to these revisions have been applied."""
        self._topics: dict[TopicName, TopicState] = {}
        self._families: dict[str, frozenset[TopicName]] = {}
        """The logs of each record, by its key."""
        self._owned: dict[str, set[TopicName]] = {}
        """The topics of each owner."""
        self._failing_over: dict[str, set[TopicName]] = {}
        """Those of them that fail over."""
        self._sessions: dict[str, keys.SessionRecord] = {}
        self._doors: dict[str, keys.DoorsRecord] = {}
        self._members: dict[str, keys.MemberRecord] = {}
        self._loads: dict[str, keys.LoadsRecord] = {}
        self._leader: keys.LeaderRecord | None = None
        self._moves: dict[TopicName, keys.MoveRecord] = {}
        self._serving: dict[TopicName, keys.ServingRecord] = {}

    # --- queries

    def topic(self, topic: TopicName) -> TopicState | None:
        return self._topics.get(topic)

    def topics(self) -> Collection[TopicName]:
        with self._guard:
            return list(self._topics)

    def family(self, name: TopicName) -> Collection[TopicName]:
        base = name.partition_of()[0]
        return {one for one in self._families.get(topic_record_key(base), ()) if one.partition_of()[0] == base}

    def owned_by(self, broker_id: str) -> set[TopicName]:
        with self._guard:
            return set(self._owned.get(broker_id, ()))

    def gone_owners(self) -> set[str]:
        """Return the brokers without a session that own topics which fail over."""
        with self._guard:
            return self._failing_over.keys() - self._sessions.keys()

    def failing_over(self, brokers: Collection[str]) -> set[TopicName]:
        """Return the topics of these brokers that fail over."""
        with self._guard:
            return {topic for owner in brokers for topic in self._failing_over.get(owner, ())}

    def session(self, broker_id: str) -> keys.SessionRecord | None:
        return self._sessions.get(broker_id)

    def sessions(self) -> Mapping[str, keys.SessionRecord]:
        with self._guard:
            return dict(self._sessions)

    def doors(self, broker_id: str) -> keys.DoorsRecord | None:
        return self._doors.get(broker_id)

    def member(self, broker_id: str) -> keys.MemberRecord | None:
        return self._members.get(broker_id)

    def draining(self) -> Mapping[str, keys.MemberRecord]:
        with self._guard:
            return {one: member for one, member in self._members.items() if member.state is BrokerState.DRAINING}

    def is_gone(self, broker_id: str) -> bool:
        return broker_id not in self._sessions

    def leader(self) -> keys.LeaderRecord | None:
        """Return the leader whose session stands."""
        leader = self._leader
        session = None if leader is None else self._sessions.get(leader.broker)
        return leader if session is not None and leader is not None and session.session == leader.session else None

    def move(self, topic: TopicName) -> keys.MoveRecord | None:
        return self._moves.get(topic)

    def moves(self) -> Mapping[TopicName, keys.MoveRecord]:
        with self._guard:
            return dict(self._moves)

    def serving(self, topic: TopicName) -> keys.ServingRecord | None:
        """Return the process that serves the topic, if its broker owns the topic and its session stands."""
        known, serving = self._topics.get(topic), self._serving.get(topic)
        if known is None or serving is None or (serving.broker, serving.epoch) != (known.owner, known.epoch):
            return None
        session = self._sessions.get(serving.broker)
        return serving if session is not None and session.session == serving.session else None

    def revision(self, key: str) -> int:
        """Return the last known revision of a key, or `ABSENT`."""
        return self._revisions.get(key, ABSENT)

    def broker(self, broker_id: str) -> BrokerInfo:
        doors = self._doors.get(broker_id)
        count = len(self._owned.get(broker_id, ()))
        return BrokerInfo(
            broker_id,
            {} if doors is None else dict(doors.addresses),
            self._state(broker_id, doors),
            count,
            count * TOPIC_LOAD + self._traffic(broker_id),
        )

    def brokers(self) -> list[BrokerInfo]:
        """Return all brokers that have a session or topics, sorted by id."""
        with self._guard:
            known = sorted(self._sessions.keys() | self._owned.keys() - {""})
        return [self.broker(one) for one in known]

    def targets(self) -> list[BrokerInfo]:
        """Return the brokers that may get topics: active ones whose doors are open."""
        return [one for one in self.brokers() if one.state is BrokerState.ACTIVE and one.addresses]

    def takers(self, former: str) -> list[BrokerInfo]:
        """Return the brokers that may get topics which nobody serves once their former owner has ended.

        If no other broker is active, those that are drained: they run, and are not about to end.
        """
        others = [one for one in self.brokers() if one.broker_id != former and one.addresses]
        return [one for one in others if one.state is BrokerState.ACTIVE] or list(filter(self._is_drained, others))

    def _is_drained(self, broker: BrokerInfo) -> bool:
        doors = self._doors.get(broker.broker_id)
        return broker.state is BrokerState.DRAINING and doors is not None and not doors.stopping

    def balance(self) -> Balance:
        return Balance(tuple(self.brokers()))

    def load_of(self, topic: TopicName) -> float:
        known = self._topics.get(topic)
        loads = None if known is None else self._loads.get(known.owner)
        return TOPIC_LOAD + (0.0 if loads is None else loads.topics.get(str(topic), 0.0))

    def _state(self, broker_id: str, doors: keys.DoorsRecord | None) -> BrokerState:
        if broker_id not in self._sessions:
            return BrokerState.GONE
        member = self._members.get(broker_id)
        if doors is not None and doors.stopping:
            return BrokerState.DRAINING
        return BrokerState.ACTIVE if member is None else member.state

    def _traffic(self, broker_id: str) -> float:
        """Return the load of traffic of the topics that the broker still has."""
        loads = self._loads.get(broker_id)
        if loads is None:
            return 0.0
        owned = self._owned.get(broker_id, set())
        return loads.rest + sum(load for topic, load in loads.topics.items() if _parsed(topic) in owned)

    # --- changes

    def replace(self, prefix: str, listing: Listing, *, is_restored: bool) -> Changes:
        """Apply a listing of a prefix as changes; `is_restored`: the store has gone back to an older state.

        One that the watch has overtaken has nothing new, and keys that were deleted since.
        """
        changes = Changes()
        present = {entry.key for entry in listing.entries}
        with self._guard:
            if listing.revision < self._followed[prefix] and not is_restored:
                return changes
            self._followed[prefix] = listing.revision
            for key in [one for one in self._revisions if one.startswith(prefix) and one not in present]:
                if is_restored or self._revisions[key] <= listing.revision:
                    self._put(key, None, ABSENT, changes)
            for entry in listing.entries:
                known = self._revisions.get(entry.key, ABSENT)
                if entry.revision > known or (is_restored and entry.revision != known):
                    self._put(entry.key, entry.value, entry.revision, changes)
        return changes

    def apply(self, changed: Iterable[tuple[str, bytes | None, int]], prefix: str) -> Changes:
        """Apply changes that the watch of a prefix has delivered: key, value, revision."""
        changes = Changes()
        with self._guard:
            for key, value, revision in changed:
                self._followed[prefix] = max(self._followed[prefix], revision)
                if revision > self._revisions.get(key, ABSENT):
                    self._put(key, value, revision, changes)
        return changes

    def learn(self, key: str, value: bytes, revision: int) -> Changes:
        """Apply an entry that this broker has read or written itself, unless the watch has been further already."""
        changes = Changes()
        prefix = keys.CLUSTER if key.startswith(keys.CLUSTER) else TOPIC_RECORDS
        with self._guard:
            if revision > max(self._followed[prefix], self._revisions.get(key, ABSENT)):
                self._put(key, value, revision, changes)
        return changes

    def _put(self, key: str, value: bytes | None, revision: int, changes: Changes) -> None:
        if value is None:
            self._revisions.pop(key, None)
        else:
            self._revisions[key] = revision
        if key.startswith(TOPIC_RECORDS):
            self._put_record(key, value, changes)
        elif key == keys.LEADER:
            self._leader = keys.read_record(key, value, keys.LeaderRecord.decode)
            changes.leader = True
        elif key.startswith((keys.MOVES, keys.SERVING)):
            self._put_of_topic(key, value, changes)
        else:
            self._put_of_broker(key, value, revision, changes)

    def _put_of_topic(self, key: str, value: bytes | None, changes: Changes) -> None:
        prefix = keys.MOVES if key.startswith(keys.MOVES) else keys.SERVING
        topic = keys.topic_of(prefix, key)
        if topic is None:
            return
        if prefix == keys.MOVES:
            _set(self._moves, topic, keys.read_record(key, value, keys.MoveRecord.decode))
        else:
            _set(self._serving, topic, keys.read_record(key, value, keys.ServingRecord.decode))
        changes.topics.add(topic)

    def _put_of_broker(self, key: str, value: bytes | None, revision: int, changes: Changes) -> None:
        what, _, broker_id = key.removeprefix(keys.CLUSTER).partition("/")
        match what + "/":
            case "brokers/":
                session = None if value is None else keys.SessionRecord.decode(value, revision)
                before = self._sessions.get(broker_id)
                _set(self._sessions, broker_id, session)
                if (before and before.session) == (session and session.session):
                    return  # a beat
            case "doors/":
                _set(self._doors, broker_id, keys.read_record(key, value, keys.DoorsRecord.decode))
            case "members/":
                _set(self._members, broker_id, keys.read_record(key, value, keys.MemberRecord.decode))
            case "loads/":
                _set(self._loads, broker_id, keys.read_record(key, value, keys.LoadsRecord.decode))
                return  # looked at with the next look at the balance
            case _:
                return
        changes.brokers.add(broker_id)

    def _put_record(self, key: str, value: bytes | None, changes: Changes) -> None:
        logs: dict[TopicName, TopicState] = {}
        if value is not None:
            try:
                identity = TopicIdentity.decode(value)
            except UnreadableRecord as error:
                _log.error("%s is left as it is: %s", key, error)
                return  # its topics stay where they were
            logs = {name: _state_of(identity, name, log) for name, log in identity.logs.items()}
        for name in self._families.get(key, frozenset()) - logs.keys():
            self._put_topic(name, None, changes)
        for name, state in logs.items():
            self._put_topic(name, state, changes)
        _set(self._families, key, frozenset(logs) or None)

    def _put_topic(self, name: TopicName, state: TopicState | None, changes: Changes) -> None:
        before = self._topics.get(name)
        if before == state:
            return
        if before is not None:
            _drop(self._owned, before.owner, name)
            _drop(self._failing_over, before.owner, name)
        _set(self._topics, name, state)
        if state is not None:
            self._owned.setdefault(state.owner, set()).add(name)
            if state.fails_over:
                self._failing_over.setdefault(state.owner, set()).add(name)
        changes.topics.add(name)


def _state_of(identity: TopicIdentity, name: TopicName, log: LogIdentity) -> TopicState:
    fails_over = log.log_id is None or log.ack == AckLevel.OBJECT
    return TopicState(identity.owner_of(name) or "", identity.epoch_of(name), log.log_id, fails_over)


def _set(known: dict[_Key, _Value], key: _Key, value: _Value | None) -> None:
    if value is None:
        known.pop(key, None)
    else:
        known[key] = value


def _drop(index: dict[str, set[TopicName]], owner: str, name: TopicName) -> None:
    names = index.get(owner, set())
    names.discard(name)
    if not names:
        index.pop(owner, None)


def _parsed(topic: str) -> TopicName:
    _, namespace, name = topic.split("/", 2)
    return TopicName(namespace, name)
