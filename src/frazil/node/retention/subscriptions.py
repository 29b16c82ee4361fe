"""A guard for topics that are kept until acknowledged: rows are removed only when every subscription has acknowledged
them.

The metadata store has the state, so it can be checked without a broker. Progress that readers of `frazil.iceberg` saved
counts as well.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any
from urllib.parse import unquote

from frazil.core.errors import FrazilError
from frazil.core.names import TopicName
from frazil.core.settings import Settings
from frazil.log.retention.guards import SUBSCRIPTIONS as GUARD_NAME
from frazil.log.topic_log import TopicLog
from frazil.meta.broker_keys import PROGRESS, SUBSCRIPTIONS, TOPICS, topic_key
from frazil.meta.opening import has_meta, open_meta
from frazil.meta.store import MetaStore, StoredEntry


class SubscriptionGuard:
    """The store is opened for each question: a file that was restored from a backup is another file."""

    name = GUARD_NAME
    holds_rows = False

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def concerns(self, log: TopicLog) -> bool:
        return log.retention.until_acked

    def floor(self, log: TopicLog) -> int:
        if not has_meta(self._settings):
            return 0
        with contextlib.closing(open_meta(self._settings)) as meta:
            return acked_end(meta, log.name, log.log_id, log.durable_end)

    def close(self) -> None:
        pass


def acked_end(meta: MetaStore, topic: TopicName, log_id: str, log_end: int) -> int:
    """Return the offset up to which every subscription has durably acknowledged exactly this log; 0
    if there is none."""
    prefix = topic_key(SUBSCRIPTIONS, topic) + "/"
    names = {unquote(entry.key[len(prefix) :]) for entry in meta.list(prefix)}
    if names and _value(meta.get(topic_key(TOPICS, topic))).get("log_id") != log_id:
        return 0  # they belong to an earlier topic of that name
    progress = {name: value for name, (_, value) in stored_progress(meta, topic).items()}
    counted = {
        name: value
        for name, value in progress.items()
        if name in names or "acked" not in value  # the broker's own, left by a deletion that a crash interrupted
    }
    ends = [_end(counted.get(name, {}), log_id, log_end) for name in names | counted.keys()]
    return min(ends, default=0)


def stored_progress(meta: MetaStore, topic: TopicName) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return key and value of the progress by subscription: the broker's, and what readers saved."""
    found = {}
    for entry in meta.list(PROGRESS):
        name, namespace, short = entry.key[len(PROGRESS) :].rsplit("/", 2)
        if (namespace, short) == (topic.namespace, topic.topic):
            found[unquote(name)] = (entry.key, _value(entry))
    return found


def _end(value: dict[str, Any], log_id: str, log_end: int) -> int:
    """Ignore an acknowledgement of another log, or beyond this one's end."""
    end = value.get("offset")
    known = isinstance(end, int) and 0 <= end <= log_end and value.get("log_id", log_id) == log_id
    return end if known and isinstance(end, int) else 0


def _value(entry: StoredEntry | None) -> dict[str, Any]:
    if entry is None:
        return {}
    try:
        value = json.loads(entry.value)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise FrazilError(f"the metadata store holds no record at {entry.key}", key=entry.key)
    return value
