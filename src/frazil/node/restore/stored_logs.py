"""The logs that an object store has, with the topic of each: from the names, the newest fence and the newest head."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa

from frazil.core.errors import InvalidName, RestoreRefused
from frazil.core.names import TopicName
from frazil.core.rows import ENVELOPE
from frazil.core.settings import AckLevel, RetentionSettings
from frazil.log.format.frames import unpack_frame, unpack_head
from frazil.meta.broker_keys import OWNER
from frazil.meta.store import MetaStore
from frazil.meta.topic_records import TOPIC_RECORDS, LogIdentity, TopicIdentity, unpacked_schema
from frazil.objects.known import ObjectsOfLogs
from frazil.objects.loading import LoadedObjects, load_objects, read_head
from frazil.objects.names import ObjectName, parse_name
from frazil.objects.packing import Fence, unpack_fence
from frazil.objects.reading import name_of
from frazil.objects.recovery import Stated
from frazil.objects.store import ObjectMissing

LISTINGS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class StoredLog:
    """One log of the store, or one that only a record names."""

    log_id: str
    topic: TopicName | None
    """None if neither a record, a fence nor an object names it."""
    loaded: LoadedObjects
    stated: Stated
    columns: pa.Schema | None
    """The columns of a typed topic."""
    is_empty: bool
    """Whether the topic's columns are unknown: no row was uploaded, and there is no record."""
    is_deleted: bool = False
    """Whether its objects were being removed with its topic: the first fence goes first."""


@dataclass(frozen=True, slots=True)
class TopicRecords:
    """What the metadata store says. A store in the lost folder says nothing."""

    logs: Mapping[str, tuple[TopicName, LogIdentity]]
    """By log id."""
    folder_id: str | None
    """Of the data folder that the metadata belongs to."""

    @property
    def is_known(self) -> bool:
        return self.folder_id is not None or bool(self.logs)


def read_records(meta: MetaStore | None) -> TopicRecords:
    logs: dict[str, tuple[TopicName, LogIdentity]] = {}
    if meta is None:
        return TopicRecords(logs, None)
    for entry in meta.list(TOPIC_RECORDS):
        for name, one in TopicIdentity.decode(entry.value).logs.items():
            if one.log_id is not None:
                logs[one.log_id] = (name, one)
    owner = meta.get(OWNER)
    return TopicRecords(logs, None if owner is None else str(json.loads(owner.value)["folder"]))


def log_ids(objects: ObjectsOfLogs, records: TopicRecords) -> list[str]:
    """Return the logs that the store has, and those that a record names."""
    there = {one for one in objects.store.folders("") if parse_name(f"{one}/{1:08d}/{0:020d}") is not None}
    return sorted(there | records.logs.keys())


def stored_logs(objects: ObjectsOfLogs, records: TopicRecords, ids: list[str]) -> Iterator[StoredLog]:
    """Load each log. Raises `ObjectDamaged` if an object is missing between others, or cannot be read."""
    with ThreadPoolExecutor(LISTINGS_AT_ONCE, "frazil-restore") as pool:
        yield from pool.map(lambda log_id: _stored_log(objects, records, log_id), ids)


def _stored_log(objects: ObjectsOfLogs, records: TopicRecords, log_id: str) -> StoredLog:
    topic: TopicName | None
    fence = _first_fence(objects, log_id)
    if fence is None and log_id not in records.logs:
        nothing = LoadedObjects((), 0, 0, None, ())
        return StoredLog(log_id, None, nothing, Stated(), None, is_empty=False, is_deleted=True)
    loaded = load_objects(objects.store, log_id, objects.manifests)
    said, columns = (None, None) if not loaded.objects else _of_newest(objects, loaded)
    if (known := records.logs.get(log_id)) is not None:
        topic, identity = known
        dropped = () if objects.manifests is None else objects.manifests.dropped(log_id)
        stated = replace(stated_of(identity), dropped=dropped)
        return StoredLog(log_id, topic, loaded, stated, stated.schema, is_empty=False)
    if loaded.owner is not None and loaded.owner.topic:
        said = loaded.owner.topic
    topic = None if said is None else _parsed(log_id, said)
    stated = Stated(ack=AckLevel.OBJECT if fence is not None and fence.ack == AckLevel.OBJECT else AckLevel.DISK)
    return StoredLog(log_id, topic, loaded, stated, columns, is_empty=not loaded.objects)


def _first_fence(objects: ObjectsOfLogs, log_id: str) -> Fence | None:
    """Return the first fence, which stays as long as the log. It has the ack level, which never changes."""
    try:
        return unpack_fence(objects.store.get(str(ObjectName(log_id, 0, 0))))
    except ObjectMissing:
        return None


def stated_of(identity: LogIdentity) -> Stated:
    """Read the facts of a log from its topic's record."""
    retention = None if identity.retention is None else RetentionSettings(**identity.retention)
    ack = AckLevel.DISK if identity.ack is None else AckLevel(identity.ack)
    return Stated(unpacked_schema(identity.schema), identity.created_us, retention, ack=ack)


def _of_newest(objects: ObjectsOfLogs, loaded: LoadedObjects) -> tuple[str, pa.Schema | None]:
    """Return the topic and the columns by the head of the newest object."""
    one = loaded.objects[-1]
    head = unpack_head(name_of(one), unpack_frame(memoryview(read_head(objects.store, one)), 0, 0))
    return head.topic, None if head.schema.equals(ENVELOPE) else pa.schema(list(head.schema)[1:])


def _parsed(log_id: str, said: str) -> TopicName:
    try:
        return TopicName.parse(said)
    except InvalidName as error:
        raise RestoreRefused(f"the objects of log {log_id} name the topic {said!r}: {error.message}") from None
