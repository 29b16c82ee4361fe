"""Schema settings of topics: the subject, the policy for invalid messages, and validation of each message.

problem = topics.validate("/default/orders", topics.recent("/default/orders"), payload, schema_id=3, version=1)
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace

from frazil.core.clock import Clock
from frazil.core.errors import MessageRefused, SchemaNotFound, SubjectMismatch, TryLater
from frazil.core.names import TopicName
from frazil.meta.store import ABSENT, MetaStore
from frazil.registry.kinds import ValidationPolicy
from frazil.registry.records import TopicSchemaRecord, topic_key, topics_prefix
from frazil.registry.registry import TRIES_MAX, SchemaRegistry

AGE_US_MAX = 1_000_000
KEPT_MAX = 10_000
FIRST_VERSION = 1


class TopicSchemas:
    """Schema settings of topics, shared by the partitions of a topic. Thread-safe."""

    def __init__(self, store: MetaStore, registry: SchemaRegistry, clock: Clock, age_us_max: int = AGE_US_MAX) -> None:
        """Changes by another process take effect after `age_us_max`; changes by this object at once."""
        self._store = store
        self._registry = registry
        self._clock = clock
        self._age_us_max = age_us_max
        self._guard = threading.Lock()
        self._kept: dict[str, tuple[int, TopicSchemaRecord]] = {}
        self._changes = 0

    def get(self, topic: str) -> TopicSchemaRecord:
        """Read the current record of a topic; the defaults if it was never bound or configured."""
        entry = self._store.get(topic_key(_named(topic)))
        return TopicSchemaRecord() if entry is None else TopicSchemaRecord.decode(entry.value)

    def bind(self, topic: str, subject: str) -> TopicSchemaRecord:
        """Bind the topic to a producer's subject; raises `SubjectMismatch` if it is bound to another."""
        return self._change(topic, self._bound(topic, subject))

    def _bound(self, topic: str, subject: str) -> Callable[[TopicSchemaRecord], TopicSchemaRecord]:
        schema_id = self._registry.schema_id(subject)

        def bound(record: TopicSchemaRecord) -> TopicSchemaRecord:
            if record.subject not in (None, subject):
                raise SubjectMismatch(topic, str(record.subject), subject)
            return replace(record, subject=subject, schema_id=schema_id)

        return bound

    def configure(self, topic: str, subject: str, policy: str, checks_payloads: bool) -> TopicSchemaRecord:
        """Set the subject and policy for an administrator, replacing any binding."""
        wanted = ValidationPolicy.parse(policy)
        record = TopicSchemaRecord(subject, self._registry.schema_id(subject), wanted, bool(checks_payloads))
        return self._change(topic, lambda _: record)

    def set_policy(self, topic: str, policy: str, checks_payloads: bool) -> TopicSchemaRecord:
        wanted = ValidationPolicy.parse(policy)
        return self._change(topic, lambda old: replace(old, policy=wanted, checks_payloads=bool(checks_payloads)))

    def binding(self, topic: str, subject: str) -> dict[str, bytes]:
        """Return the record that `bind` would store for a new topic: the caller stores both, then calls `changed`."""
        record = self._bound(topic, subject)(self.get(topic))
        return {topic_key(_named(topic)): record.encode()}

    def key(self, topic: str) -> str:
        """Return the store key of a topic's record, which is deleted with the topic. Then call `changed`."""
        return topic_key(_named(topic))

    def changed(self) -> None:
        """Invalidate the cache: another object of this process has changed the store."""
        self._forget_kept()

    def validate(
        self, topic: str, record: TopicSchemaRecord, payload: bytes, schema_id: int | None, version: int | None
    ) -> str | None:
        """Validate a message. Returns None if it is valid, or the reason if it is invalid but accepted.

        Raises `MessageRefused` if it is invalid and the topic enforces its schema. The record is passed in; only a
        schema that was never used is fetched from the store.
        """
        if record.policy is ValidationPolicy.NONE:
            return None
        reason = self._reason(record, payload, schema_id, version)
        if reason is not None and record.policy is ValidationPolicy.ENFORCE:
            raise MessageRefused(topic, reason)
        return reason

    def _reason(
        self, record: TopicSchemaRecord, payload: bytes, schema_id: int | None, version: int | None
    ) -> str | None:
        if record.schema_id is None:
            return "it has no subject yet" if record.policy is ValidationPolicy.ENFORCE else None
        if schema_id != record.schema_id:
            named = f"schema id {schema_id}" if schema_id else "no schema id"
            return f"the message has {named}, and {record.subject} has {record.schema_id}"
        if not record.checks_payloads:
            return None
        number = version or FIRST_VERSION
        try:
            problem = self._registry.validator(schema_id, number)(payload)
        except SchemaNotFound as error:
            return error.message
        return None if problem is None else f"the payload does not fit version {number} of {record.subject}: {problem}"

    def learn(self, topics: Iterable[str]) -> None:
        """Cache the records of these topics in one read, so that publishing works while the store is unavailable."""
        found = {entry.key: TopicSchemaRecord.decode(entry.value) for entry in self._store.list(topics_prefix())}
        now_us = self._clock.monotonic_us()
        with self._guard:
            for topic in itertools.islice(topics, KEPT_MAX):
                self._kept[topic] = (now_us, found.get(topic_key(_named(topic)), TopicSchemaRecord()))

    def kept(self, topic: str) -> tuple[TopicSchemaRecord, bool] | None:
        """Return the cached record of a topic, and whether it is recent enough."""
        kept = self._kept.get(topic)
        return None if kept is None else (kept[1], self._clock.monotonic_us() - kept[0] < self._age_us_max)

    def recent(self, topic: str) -> TopicSchemaRecord:
        """Return the record from the cache; reads the store if it is not cached."""
        kept = self._kept.get(topic)
        now_us = self._clock.monotonic_us()
        if kept is not None and now_us - kept[0] < self._age_us_max:
            return kept[1]
        changes = self._changes
        record = self.get(topic)
        with self._guard:
            if len(self._kept) >= KEPT_MAX:
                self._kept = {}
            if changes == self._changes:  # otherwise the record may predate the change
                self._kept[topic] = (now_us, record)
        return record

    def _forget_kept(self) -> None:
        with self._guard:
            self._changes += 1
            self._kept = {}

    def _change(self, topic: str, change: Callable[[TopicSchemaRecord], TopicSchemaRecord]) -> TopicSchemaRecord:
        key = topic_key(_named(topic))
        for _ in range(TRIES_MAX):
            entry = self._store.get(key)
            before = TopicSchemaRecord() if entry is None else TopicSchemaRecord.decode(entry.value)
            after = change(before)
            if entry is not None and after == before:
                return after
            if self._store.put_if(key, after.encode(), ABSENT if entry is None else entry.revision) is not None:
                self._forget_kept()
                return after
        raise TryLater(f"the settings of {topic} were changed by others {TRIES_MAX} times meanwhile; try again")


def _named(topic: str) -> TopicName:
    return TopicName.parse(topic).partition_of()[0]
