"""Delete a topic without a running broker, with everything that a broker has stored of it.

The log is deleted last. So an interruption leaves a topic that still exists and can be deleted again, never a name
under which a later topic would find the subscriptions of this one.
"""

from __future__ import annotations

import contextlib
import json

from frazil.broker.store.records import forget_topic, users_of
from frazil.broker.topics.identities import TopicIdentities
from frazil.core.clock import SystemClock
from frazil.core.disk import LocalDisk
from frazil.core.errors import TopicInUse
from frazil.core.names import TopicName
from frazil.core.partitions import topic_or_partitions
from frazil.log.folder.identity import folder_id
from frazil.log.storage import Storage
from frazil.meta.broker_keys import OWNER
from frazil.meta.opening import has_meta, open_meta
from frazil.meta.store import MetaStore
from frazil.meta.topic_records import creator_key, topic_record_key
from frazil.registry.records import topic_key as schema_key


def delete_with_records(storage: Storage, topic: str, *, force: bool) -> None:
    """Raises `TopicInUse` if it has subscriptions or producers, unless `force` is set.

    A partitioned topic is deleted with all its partitions, or not at all if one of them is in use.
    """
    name = TopicName.parse(topic)
    there = storage.family(name)
    names = topic_or_partitions(name, there)
    with contextlib.ExitStack() as stack:
        meta = None
        if has_meta(storage.settings):
            opened = stack.enter_context(contextlib.closing(open_meta(storage.settings)))
            meta = opened if _is_of(opened, storage) else None
        if meta is not None:
            subscriptions, producers = (sum(each) for each in zip(*(users_of(meta, one) for one in names), strict=True))
            if not force and (subscriptions or producers):
                raise TopicInUse(str(name), subscriptions, producers)
        base = name.partition_of()[0]
        for one in reversed(names):
            there.discard(one)
            if meta is not None:
                is_last = not any(other.partition_of()[0] == base for other in there)
                keys = [schema_key(base), creator_key(base), topic_record_key(base)]
                forget_topic(meta, one, keys if is_last else ())
            storage.delete_topic(str(one))
        if meta is not None and there:
            TopicIdentities(storage, meta, SystemClock()).changed(base)


def _is_of(meta: MetaStore, storage: Storage) -> bool:
    """Whether the store is this folder's. What another folder has stored under the same names is not touched."""
    owner = meta.get(OWNER)
    folder = storage.settings.data or storage.settings.log_folder
    return owner is None or json.loads(owner.value).get("folder") == folder_id(LocalDisk(), folder)
