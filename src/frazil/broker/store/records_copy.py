"""A copy of the broker's records next to the data, in case the metadata store is restored from an older backup.

A subscription that the store no longer knows would begin with the next published message, and skip all earlier ones. So
new records are also written here, after the store has them, and deleted records are deleted here first: a record that
is only here was lost by the store. Positions are copied periodically; older ones only cost redeliveries.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from frazil.core.names import TopicName
from frazil.meta.broker_keys import CONSUMERS, PRODUCERS, PROGRESS, SUBSCRIPTIONS, TOPICS, topic_key
from frazil.meta.store import MetaStore

_PREFIXES = (TOPICS, PRODUCERS, SUBSCRIPTIONS, CONSUMERS, PROGRESS)


def lost_records(meta: MetaStore, copy: MetaStore, topics: Collection[TopicName]) -> dict[str, bytes]:
    """Return the records that the store has lost of these topics. A recreated topic has lost nothing."""
    there = {entry.key: entry.value for prefix in _PREFIXES for entry in meta.list(prefix)}
    copied = {entry.key: entry.value for prefix in _PREFIXES for entry in copy.list(prefix)}
    same = {
        topic
        for topic in topics
        if (key := topic_key(TOPICS, topic)) in copied
        and (key not in there or _log_id(there[key]) == _log_id(copied[key]))
    }
    return {key: value for key, value in copied.items() if key not in there and _topic_of(key) in same}


def lost_records_of(meta: MetaStore, copy: MetaStore, topic: TopicName) -> dict[str, bytes]:
    """Return the records that the store has lost of one topic. Other topics in the store cost nothing."""
    key = topic_key(TOPICS, topic)
    mine, there = copy.get(key), meta.get(key)
    if mine is None or (there is not None and _log_id(there.value) != _log_id(mine.value)):
        return {}
    below = [topic_key(prefix, topic) + "/" for prefix in (PRODUCERS, SUBSCRIPTIONS, CONSUMERS)]
    copied = [
        mine,
        *(entry for prefix in below for entry in copy.list(prefix)),
        *copy.list(PROGRESS, suffix=str(topic)),
    ]
    kept = {entry.key for prefix in below for entry in meta.list(prefix)}
    return {one.key: one.value for one in copied if one.key not in kept and meta.get(one.key) is None}


def _topic_of(key: str) -> TopicName:
    parts = key.split("/")
    namespace, topic = parts[-2:] if key.startswith(PROGRESS) else parts[3:5]
    return TopicName(namespace, topic)


def _log_id(value: bytes) -> Any:
    return json.loads(value).get("log_id")
