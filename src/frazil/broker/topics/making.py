"""New topics and partitions: which of them to create, and their logs."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import pyarrow as pa

from frazil.core.errors import TopicExists, TopicUnavailable
from frazil.core.names import TopicName
from frazil.core.partitions import check_form, partition_names, partitions_of, partitions_to_make
from frazil.core.settings import RetentionSettings
from frazil.log.storage import Storage


def to_make(
    base: TopicName,
    partitions: int,
    reliable: bool,
    known: Mapping[TopicName, bool],
    stored: AbstractSet[TopicName],
) -> list[TopicName]:
    """The topic, or its partitions that are missing; `TopicExists` if log or broker has the name otherwise.

    `known` are the topics of the broker, and whether each is reliable.
    """
    there = stored | known.keys()
    if not partitions:
        if base in there:
            raise TopicExists(str(base))
        check_form(base, there, has_partitions=bool(partitions_of(base, there)))
        return [base]
    missing = partitions_to_make(base, partitions, there)
    for name in partition_names(base, partitions):
        is_reliable = name in stored or known.get(name, False)
        if name not in missing and is_reliable is not reliable:
            raise TopicExists(str(name))
    return missing


def new_log_id() -> str:
    return str(uuid.uuid4())


def create_log(storage: Storage, name: TopicName, ids: Mapping[TopicName, str]) -> None:
    """If another caller was faster, its log is kept."""
    with contextlib.suppress(TopicExists):
        storage.create_topic(str(name), log_id=ids[name])


def create_logs(
    storage: Storage,
    base: TopicName,
    partitions: int,
    retention: RetentionSettings | None,
    ids: Mapping[TopicName, str] | None = None,
    schema: pa.Schema | None = None,
    ack: str | None = None,
) -> None:
    """Create all or none. `ids` are the ids of the new logs."""
    if partitions:
        storage.create_partitions(str(base), partitions, retention=retention, log_ids=ids, ack=ack)
    else:
        log_id = (ids or {}).get(base)
        storage.create_topic(str(base), schema=schema, retention=retention, log_id=log_id, ack=ack)


def created_elsewhere(name: TopicName) -> TopicUnavailable:
    """Return the error of a call that would have created a topic, and that goes on at its owner."""
    return TopicUnavailable(str(name), "another broker has just created it")
