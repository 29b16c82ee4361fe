"""The records of the metadata store that belong to a tenant, wherever they are."""

from __future__ import annotations

import json
from collections.abc import Iterable
from urllib.parse import quote

from frazil.meta import broker_keys, cluster_keys
from frazil.meta.store import MetaStore
from frazil.meta.topic_records import CREATOR_RECORDS, TOPIC_RECORDS
from frazil.node.objects.deletion import DELETED
from frazil.node.telemetry.scopes import scope_of
from frazil.registry import records

_SPELLED = (TOPIC_RECORDS, CREATOR_RECORDS)
"""Prefixes of keys in lower case: the records have the names as they are spelled."""
_OF_TOPICS = (
    broker_keys.TOPICS,
    broker_keys.PRODUCERS,
    broker_keys.SUBSCRIPTIONS,
    broker_keys.CONSUMERS,
    broker_keys.NAMESPACES,
    records.topics_prefix(),
    cluster_keys.MOVES,
    cluster_keys.SERVING,
)
"""Prefixes of keys whose next part is a namespace."""
OBJECTS = "/objects/"


def records_of(store: MetaStore, tenant: str) -> list[str]:
    """Return the keys of topics, namespaces, subscriptions and schemas of a tenant."""
    found = [entry.key for prefix in _OF_TOPICS for entry in store.list(f"{prefix}{tenant}.")]
    spelled = (entry for prefix in _SPELLED for entry in store.list(f"{prefix}{tenant}."))
    found += [entry.key for entry in spelled if _topic_of(entry.value).startswith(f"/{tenant}.")]
    progress = (entry.key for entry in store.list(broker_keys.PROGRESS))
    found += [key for key in progress if key.split("/")[-2].startswith(f"{tenant}.")]
    return found + [key for subject in _subjects(store, tenant) for key in _of_subject(store, subject)]


def records_of_logs(store: MetaStore, log_ids: Iterable[str]) -> list[str]:
    """Return the keys of the objects of logs, and of their deletion: they are there until the objects are gone."""
    found = []
    for log_id in log_ids:
        found += [entry.key for entry in store.list(f"{OBJECTS}{log_id}/")]
        found += [key for key in (DELETED + log_id, broker_keys.TAKEN_NAMES + log_id) if store.get(key) is not None]
    return found


def removable(store: MetaStore, tenant: str) -> list[str]:
    """Return the records that no topic owns: namespaces that were created, and schemas."""
    found = [entry.key for entry in store.list(f"{broker_keys.NAMESPACES}{tenant}.")]
    return found + [key for subject in _subjects(store, tenant) for key in _of_subject(store, subject)]


def _topic_of(value: bytes) -> str:
    """Return the topic of a record; nothing for one that can't be read, which may be anybody's."""
    try:
        return str(json.loads(value)["topic"])
    except (ValueError, KeyError, TypeError):
        return ""


def _subjects(store: MetaStore, tenant: str) -> list[str]:
    """Return the subjects that the scope of a tenant covers: those with its names, as `/acme.default/orders`."""
    prefix = records.subjects_prefix() + quote(scope_of(tenant).partition("*")[0], safe="")
    return [records.subject_of(entry.key) for entry in store.list(prefix)]


def _of_subject(store: MetaStore, subject: str) -> list[str]:
    """Return the keys of a subject, its own last: a deletion that was interrupted finds the others by it."""
    entry = store.get(records.subject_key(subject))
    if entry is None:
        return []
    schema_id = records.SubjectRecord.decode(entry.value).schema_id
    versions = [one.key for one in store.list(records.versions_prefix(schema_id))]
    return [*versions, records.id_key(schema_id), entry.key]
