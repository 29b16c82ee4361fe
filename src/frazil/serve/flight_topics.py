"""What a client asks of the storage over Flight: topics made, changed, deleted, listed, with their figures.

    action `topics`           the names of all
    action `topic`            {"topic", "schema", "create"}: what a client needs to know of it, made if it is not there
    action `create_topic`     {"topic", "schema", "retention"}
    action `create_partitions` {"topic", "partitions", "retention"}: what a client needs to know of each
    action `delete_topic`     {"topic", "force"}
    action `topic_stats`, `topic_sync`     {"topic"}
    action `producer`         {"topic", "log_id", "producer"}: {"epoch"}, -1 if nobody has the name
    action `change_schema`    {"topic", "schema"}
    action `set_retention`    {"topic", "retention"}

A schema is Arrow's own form of it, as base64.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from frazil.core.columns import SCHEMA_CHARACTERS_MAX, schema_as_text, schema_from_text
from frazil.core.errors import SchemaMismatch, TopicDiffers, TopicNotFound
from frazil.core.sequences import NAME_CHARACTERS_MAX, NO_EPOCH
from frazil.core.settings import FlightSettings, RetentionSettings
from frazil.log.former import cut_since
from frazil.log.storage import Storage
from frazil.log.topic import Topic
from frazil.log.topic_log import TopicLog
from frazil.serve.movers import parsed


class _Named(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    topic: str = Field(max_length=1024)


class _WithSchema(_Named):
    schema_: str | None = Field(None, alias="schema", max_length=SCHEMA_CHARACTERS_MAX)

    @property
    def own(self) -> pa.Schema | None:
        return None if self.schema_ is None else schema_from_text(self.schema_)


class _Wanted(_WithSchema):
    create: bool = False


class _New(_WithSchema):
    retention: RetentionSettings | None = None


class _NewPartitions(_Named):
    partitions: int
    retention: RetentionSettings | None = None


class _Delete(_Named):
    force: bool = False


class _Producer(_Named):
    log_id: str
    producer: str = Field(min_length=1, max_length=NAME_CHARACTERS_MAX)


class _Retention(_Named):
    retention: RetentionSettings | None = None


class TopicActions:
    """The actions by name, for the Flight door to call with a body."""

    def __init__(self, storage: Storage, settings: FlightSettings, delete: Callable[[str, bool], None]) -> None:
        """`delete` takes a topic with all that is known of it; or refuses, unless it is forced."""
        self._storage = storage
        self._delete_topic = delete
        self._settings = settings
        self.by_name: dict[str, Callable[[bytes], bytes]] = {
            "topics": self._topics,
            "topic": self._topic,
            "create_topic": self._create,
            "create_partitions": self._create_partitions,
            "delete_topic": self._delete,
            "change_schema": self._change_schema,
            "set_retention": self._set_retention,
            "topic_stats": self._stats,
            "topic_sync": self._sync,
            "producer": self._producer,
        }

    def _topics(self, _: bytes) -> bytes:
        return _json(self._storage.topics())

    def _topic(self, body: bytes) -> bytes:
        asked = parsed(_Wanted, body, "topic")
        return self._told(self._storage.topic(asked.topic, schema=asked.own, create=asked.create))

    def _create(self, body: bytes) -> bytes:
        asked = parsed(_New, body, "create_topic")
        return self._told(self._storage.create_topic(asked.topic, schema=asked.own, retention=asked.retention))

    def _create_partitions(self, body: bytes) -> bytes:
        asked = parsed(_NewPartitions, body, "create_partitions")
        made = self._storage.create_partitions(asked.topic, asked.partitions, retention=asked.retention)
        return _json([self._facts(topic) for topic in made])

    def _delete(self, body: bytes) -> bytes:
        asked = parsed(_Delete, body, "delete_topic")
        self._delete_topic(asked.topic, asked.force)
        return _json({})

    def _change_schema(self, body: bytes) -> bytes:
        asked = parsed(_WithSchema, body, "change_schema")
        if asked.own is None:
            raise SchemaMismatch("schema: change_schema needs one", field="schema")
        return self._told(self._storage.change_schema(asked.topic, asked.own))

    def _set_retention(self, body: bytes) -> bytes:
        asked = parsed(_Retention, body, "set_retention")
        self._storage.set_retention(asked.topic, asked.retention)
        return _json({})

    def _stats(self, body: bytes) -> bytes:
        asked = parsed(_Named, body, "topic_stats")
        return _json(self._storage.topic(asked.topic, create=False).stats().as_dict())

    def _sync(self, body: bytes) -> bytes:
        asked = parsed(_Named, body, "topic_sync")
        return _json({"durable_end": self._storage.topic(asked.topic, create=False).sync()})

    def _producer(self, body: bytes) -> bytes:
        """What a client looks at before it takes the name, so that it can tell whether another took it meanwhile."""
        asked = parsed(_Producer, body, "producer")
        topic = self._storage.topic(asked.topic, create=False)
        check_log(topic.log, asked.log_id)
        state = topic.producer_state(asked.producer)
        return _json({"epoch": NO_EPOCH if state is None else state.epoch})

    def _told(self, topic: Topic) -> bytes:
        return _json(self._facts(topic))

    def _facts(self, topic: Topic) -> dict[str, Any]:
        wal = self._storage.settings.wal
        own = topic.schema
        return {
            "topic": topic.name,
            "log_id": topic.log.log_id,
            "former": [one.log_id for one in topic.log.former],
            "schema": None if own is None else schema_as_text(own),
            "message_bytes_max": min(wal.message_bytes_max, self._settings.batch_bytes_max),
            "batch_bytes_max": min(wal.batch_bytes_max, self._settings.batch_bytes_max),
            "batch_rows_max": self._settings.batch_rows_max,
        }


def check_log(log: TopicLog, log_id: str | None, offset: int | None = None) -> None:
    """Refuse who counts on another log. One that was renumbered has the same rows below the cut, so readers at an
    `offset` there go on. Rows that were sent to it and have no answer may be stored: it is not as one that is gone."""
    if log_id in (None, log.log_id):
        return
    cut = cut_since(log.former, str(log_id))
    if cut is None:
        raise TopicNotFound(str(log.name), "it was deleted, and another was made under its name; use that one")
    if offset is None or offset > cut:
        raise TopicDiffers(
            str(log.name), f"it was renumbered, and its rows have other offsets from {cut} on; open it again"
        )


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
