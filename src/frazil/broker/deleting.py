"""A topic deleted where no broker runs, with all that one has stored of it.

The log goes last. So whatever is killed in between leaves a topic that is still there and can be deleted again, never a
name under which a later topic would find the subscriptions of this one.
"""

from __future__ import annotations

import contextlib

from frazil.broker.records import forget_topic, users_of
from frazil.core.errors import TopicInUse
from frazil.core.names import TopicName
from frazil.core.partitions import topic_or_partitions
from frazil.log.storage import Storage
from frazil.meta.opening import has_meta, open_meta
from frazil.registry.records import topic_key as schema_key


def delete_with_records(storage: Storage, topic: str, *, force: bool) -> None:
    """`TopicInUse` if it has subscriptions or producers, unless `force` says that they go with it.

    A partitioned topic goes with all its partitions, or none if one of them is in use.
    """
    name = TopicName.parse(topic)
    there = storage.family(name)
    names = topic_or_partitions(name, there)
    with contextlib.ExitStack() as stack:
        meta = None
        if has_meta(storage.settings):
            meta = stack.enter_context(contextlib.closing(open_meta(storage.settings)))
            subscriptions, producers = (sum(each) for each in zip(*(users_of(meta, one) for one in names), strict=True))
            if not force and (subscriptions or producers):
                raise TopicInUse(str(name), subscriptions, producers)
        base = name.partition_of()[0]
        for one in reversed(names):
            there.discard(one)
            if meta is not None:
                is_last = not any(other.partition_of()[0] == base for other in there)
                forget_topic(meta, one, [schema_key(base)] if is_last else ())
            storage.delete_topic(str(one))
