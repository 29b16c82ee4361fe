"""What a client asks of the storage over Flight: topics made, changed, deleted, listed, with their figures.

    action `topics`           the names of all
    action `topic`            {"topic", "schema", "create"}: what a client needs to know of it, made if it is not there
    action `create_topic`     {"topic", "schema", "retention"}
    action `delete_topic`     {"topic", "force"}
    action `topic_stats`, `topic_sync`     {"topic"}
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
from frazil.core.errors import SchemaMismatch
from frazil.core.settings import FlightSettings, RetentionSettings
from frazil.log.storage import Storage
from frazil.log.topic import Topic
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


class _Delete(_Named):
    force: bool = False


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
            "delete_topic": self._delete,
            "change_schema": self._change_schema,
            "set_retention": self._set_retention,
            "topic_stats": self._stats,
            "topic_sync": self._sync,
        }

    def _topics(self, _: bytes) -> bytes:
        return _json(self._storage.topics())

    def _topic(self, body: bytes) -> bytes:
        asked = parsed(_Wanted, body, "topic")
        return self._told(self._storage.topic(asked.topic, schema=asked.own, create=asked.create))

    def _create(self, body: bytes) -> bytes:
        asked = parsed(_New, body, "create_topic")
        return self._told(self._storage.create_topic(asked.topic, schema=asked.own, retention=asked.retention))

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

    def _told(self, topic: Topic) -> bytes:
        wal = self._storage.settings.wal
        own = topic.schema
        return _json(
            {
                "topic": topic.name,
                "log_id": topic.log.log_id,
                "schema": None if own is None else schema_as_text(own),
                "message_bytes_max": min(wal.message_bytes_max, self._settings.batch_bytes_max),
                "batch_bytes_max": min(wal.batch_bytes_max, self._settings.batch_bytes_max),
                "batch_rows_max": self._settings.batch_rows_max,
            }
        )


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
