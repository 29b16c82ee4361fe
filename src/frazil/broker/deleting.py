"""A topic deleted where no broker runs, with all that one has stored of it.

The log goes last. So whatever is killed in between leaves a topic that is still there and can be deleted again, never a
name under which a later topic would find the subscriptions of this one.
"""

from __future__ import annotations

import contextlib

from frazil.broker.records import delete_key, forget_topic, users_of
from frazil.core.errors import TopicInUse
from frazil.core.names import TopicName
from frazil.log.storage import Storage
from frazil.meta.opening import has_meta, open_meta
from frazil.registry.records import topic_key as schema_key


def delete_with_records(storage: Storage, topic: str, *, force: bool) -> None:
    """`TopicInUse` if it has subscriptions or producers, unless `force` says that they go with it."""
    name = TopicName.parse(topic)
    names = [TopicName.parse(one) for one in storage.topics()]
    if has_meta(storage.settings):
        with contextlib.closing(open_meta(storage.settings)) as meta:
            subscriptions, producers = users_of(meta, name)
            if not force and (subscriptions or producers):
                raise TopicInUse(str(name), subscriptions, producers)
            base = name.partition_of()[0]
            if not any(one != name and one.partition_of()[0] == base for one in names):
                delete_key(meta, schema_key(base))
            forget_topic(meta, name)
    storage.delete_topic(topic)
