"""Topics: which subject they have, and what becomes of their messages."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import frazil
from frazil.meta.sqlite import SqliteStore
from frazil.meta.store import StoredEntry
from frazil.registry.kinds import ValidationPolicy
from frazil.registry.records import TopicSchemaRecord
from frazil.registry.registry import SchemaRegistry
from frazil.registry.topics import AGE_US_MAX, TopicSchemas
from frazil.testing import FakeClock

TOPIC = "/default/orders"
TEXT = b'{"type": "string"}'
GOOD, BAD = b'"tea"', b"1"


@pytest.fixture(autouse=True)
def subjects(registry: SchemaRegistry) -> None:
    registry.register("orders", "json", TEXT)
    registry.register("other", "bytes", b"")


def check(topics: TopicSchemas, payload: bytes, schema_id: int | None, version: int | None) -> str | None:
    """As a door does for each message."""
    return topics.validate(TOPIC, topics.recent(TOPIC), payload, schema_id, version)


def test_a_topic_begins_without_a_subject_and_warns(topics: TopicSchemas) -> None:
    assert topics.get(TOPIC) == TopicSchemaRecord(None, None, ValidationPolicy.WARN, False)
    assert check(topics, BAD, None, None) is None


def test_the_first_producer_with_a_subject_binds_the_topic(topics: TopicSchemas) -> None:
    assert topics.bind(TOPIC, "orders") == TopicSchemaRecord("orders", 1, ValidationPolicy.WARN, False)
    assert topics.bind(TOPIC, "orders") == topics.get(TOPIC)
    with pytest.raises(frazil.SubjectMismatch, match="are those of the subject orders, not of other"):
        topics.bind(TOPIC, "other")
    assert topics.get(TOPIC).subject == "orders"


def test_an_unknown_subject_binds_nothing(topics: TopicSchemas) -> None:
    with pytest.raises(frazil.SchemaNotFound):
        topics.bind(TOPIC, "none")
    with pytest.raises(frazil.SchemaNotFound):
        topics.configure(TOPIC, "none", "warn", False)
    assert topics.get(TOPIC).subject is None


def test_partitions_share_what_their_topic_has(topics: TopicSchemas) -> None:
    topics.bind(f"{TOPIC}-part-0", "orders")
    assert topics.get(f"{TOPIC}-part-1") == topics.get(TOPIC)
    with pytest.raises(frazil.SubjectMismatch):
        topics.bind(f"{TOPIC}-part-2", "other")


def test_an_administrator_configures_a_topic_whatever_it_had(topics: TopicSchemas) -> None:
    topics.bind(TOPIC, "orders")
    assert topics.configure(TOPIC, "other", "ENFORCE", True) == TopicSchemaRecord(
        "other", 2, ValidationPolicy.ENFORCE, True
    )
    assert topics.set_policy(TOPIC, "none", False) == TopicSchemaRecord("other", 2, ValidationPolicy.NONE, False)
    with pytest.raises(frazil.InvalidInput, match="validation_policy: must be one of none, warn, enforce"):
        topics.set_policy(TOPIC, "strict", False)
    with pytest.raises(frazil.InvalidName):
        topics.configure("orders", "other", "warn", False)


def test_a_topic_that_was_forgotten_begins_anew(topics: TopicSchemas, store: SqliteStore) -> None:
    topics.configure(TOPIC, "orders", "enforce", True)
    assert check(topics, GOOD, 1, 1) is None
    store.delete_all([topics.key(TOPIC)])
    topics.changed()
    assert topics.get(TOPIC) == TopicSchemaRecord()
    assert check(topics, BAD, None, None) is None
    topics.bind(TOPIC, "other")


def test_a_message_must_name_the_schema_of_its_topic(topics: TopicSchemas) -> None:
    topics.bind(TOPIC, "orders")
    assert check(topics, BAD, 1, 1) is None
    assert check(topics, GOOD, 2, 1) == "the message has schema id 2, and orders has 1"
    assert check(topics, GOOD, None, None) == "the message has no schema id, and orders has 1"
    topics.set_policy(TOPIC, "enforce", False)
    assert check(topics, BAD, 1, 1) is None
    for schema_id in (None, 0, 2):
        with pytest.raises(frazil.MessageRefused, match="enforces its schema: the message has"):
            check(topics, GOOD, schema_id, 1)


def test_a_payload_must_fit_the_version_that_the_message_names(topics: TopicSchemas, registry: SchemaRegistry) -> None:
    registry.set_compatibility_mode("orders", "none")
    registry.register("orders", "json", b'{"type": "integer"}')
    topics.configure(TOPIC, "orders", "warn", True)
    assert check(topics, GOOD, 1, 1) is None
    assert check(topics, BAD, 1, 2) is None
    assert check(topics, GOOD, 1, None) is None
    assert check(topics, BAD, 1, 1) == (
        'the payload does not fit version 1 of orders: the payload: 1 is not of type "string"'
    )
    assert check(topics, GOOD, 1, 3) == "subject orders has no version 3"
    topics.set_policy(TOPIC, "enforce", True)
    assert check(topics, GOOD, 1, 1) is None
    for payload, version in ((BAD, 1), (GOOD, 2), (GOOD, 3)):
        with pytest.raises(frazil.MessageRefused):
            check(topics, payload, 1, version)
    topics.set_policy(TOPIC, "none", True)
    assert check(topics, BAD, 9, 9) is None


def test_a_topic_that_enforces_without_a_subject_takes_nothing(topics: TopicSchemas) -> None:
    topics.set_policy(TOPIC, "enforce", True)
    with pytest.raises(frazil.MessageRefused, match="it has no subject yet"):
        check(topics, GOOD, 1, 1)


def test_a_change_by_another_process_takes_hold_in_time(
    topics: TopicSchemas, registry: SchemaRegistry, store: SqliteStore, clock: FakeClock
) -> None:
    topics.bind(TOPIC, "orders")
    assert check(topics, GOOD, 2, 1) is not None
    other = TopicSchemas(store, registry, clock)
    other.set_policy(TOPIC, "none", False)
    clock.advance(AGE_US_MAX - 1)
    assert check(topics, GOOD, 2, 1) is not None
    clock.advance(1)
    assert check(topics, GOOD, 2, 1) is None


class Slow:
    """A store whose answer to one reader comes after something else was done."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.meanwhile: list[Callable[[], object]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def get(self, key: str) -> StoredEntry | None:
        found = self._store.get(key)
        if self.meanwhile:
            self.meanwhile.pop()()
        return found


def test_what_was_read_before_a_change_is_not_kept_after_it(
    store: SqliteStore, registry: SchemaRegistry, clock: FakeClock
) -> None:
    slow = Slow(store)
    topics = TopicSchemas(slow, registry, clock)  # type: ignore[arg-type]
    slow.meanwhile.append(lambda: topics.configure(TOPIC, "orders", "enforce", True))
    assert check(topics, BAD, 1, 1) is None
    with pytest.raises(frazil.MessageRefused):
        check(topics, BAD, 1, 1)


def test_messages_are_checked_without_the_store(
    topics: TopicSchemas, store: SqliteStore, registry: SchemaRegistry
) -> None:
    topics.configure(TOPIC, "orders", "enforce", True)
    check(topics, GOOD, 1, 1)
    store.close()
    assert check(topics, GOOD, 1, 1) is None
