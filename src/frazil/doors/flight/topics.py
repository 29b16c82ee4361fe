"""Topic administration over Flight: create, change, delete, list and describe topics.

    action `topics`           the names of all, whichever broker owns them
    action `brokers`          the brokers of the cluster, [{"broker_id", "flight"}]
    action `topic`            {"topic", "schema", "create"}: what a client needs to know, created if it does not exist
    action `create_topic`     {"topic", "schema", "retention", "ack"}
    action `create_partitions` {"topic", "partitions", "retention", "ack"}: what a client needs to know of each
    action `delete_topic`     {"topic", "force"}
    action `topic_stats`, `topic_sync`     {"topic"}
    action `topic_logs`       {"topic", "files"}: {"here": its logs, "elsewhere": [{"topic", "broker_id", "flight"}]}
    action `producer`         {"topic", "log_id", "producer"}: {"epoch"}, -1 if the name has no client
    action `change_schema`    {"topic", "schema"}
    action `set_retention`    {"topic", "retention"}

A schema is in Arrow's form, as base64. A call for a topic of another broker is refused with the owner's addresses.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from frazil.core import access
from frazil.core.access import Action, Right
from frazil.core.cluster import flight_address
from frazil.core.errors import SchemaMismatch, TopicDiffers, TopicNotFound
from frazil.core.names import TopicName
from frazil.core.principal import ANONYMOUS, LOCAL, Principal
from frazil.core.rows.columns import SCHEMA_CHARACTERS_MAX, schema_as_text, schema_from_text
from frazil.core.sequences import NAME_CHARACTERS_MAX, NO_EPOCH, check_producer
from frazil.core.settings import FlightSettings, RetentionSettings
from frazil.doors.flight.actions import FlightAction, identified, operate
from frazil.doors.flight.movers import parsed
from frazil.doors.owning import Owning
from frazil.node.node import Node
from frazil.node.tiers.family_logs import family_logs
from frazil.node.types.log import Topic, TopicLog, as_json, cut_since

ACK_CHARACTERS_MAX = 16


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
    ack: str | None = Field(None, max_length=ACK_CHARACTERS_MAX)


class _NewPartitions(_Named):
    partitions: int
    retention: RetentionSettings | None = None
    ack: str | None = Field(None, max_length=ACK_CHARACTERS_MAX)


class _Delete(_Named):
    force: bool = False


class _Logs(_Named):
    files: bool = False
    """With the places of the files, for processes of this host."""


class _Producer(_Named):
    log_id: str
    producer: str = Field(min_length=1, max_length=NAME_CHARACTERS_MAX)


class _Retention(_Named):
    retention: RetentionSettings | None = None


class TopicActions:
    """The actions by name, called by the Flight server with a body."""

    def __init__(self, node: Node, settings: FlightSettings) -> None:
        self._node = node
        self._owning = Owning(node)
        self._topics = node.topics(ANONYMOUS)
        self._settings = settings
        self.by_name = {
            "topics": FlightAction(identified, self._list),
            "brokers": FlightAction(identified, self._brokers),
            "topic": FlightAction(_on(_Wanted, Action.DESCRIBE), self._topic),
            "create_topic": FlightAction(_on(_New, Action.CREATE), self._create),
            "create_partitions": FlightAction(_on(_NewPartitions, Action.CREATE), self._create_partitions),
            "delete_topic": FlightAction(_on(_Delete, Action.DELETE), self._delete),
            "change_schema": FlightAction(_on(_WithSchema, Action.ALTER), self._change_schema),
            "set_retention": FlightAction(_on(_Retention, Action.ALTER), self._set_retention),
            "topic_stats": FlightAction(_on(_Named, Action.DESCRIBE), self._stats),
            "topic_logs": FlightAction(_to_read_logs, self._logs),
            "topic_sync": FlightAction(_on(_Named, Action.PRODUCE), self._sync),
            "producer": FlightAction(_on(_Producer, Action.PRODUCE), self._producer),
        }

    def _list(self, who: Principal, _: bytes) -> bytes:
        """Return the topics that the caller may know of, wherever they are."""
        here = self._node.topic_names(who)
        if not self._owning.is_clustered:
            return _json(here)
        known, gate = (str(name) for name in self._owning.ownership.topics()), self._node.gate
        there = {name for name in known if gate.allows(who, Action.DESCRIBE, access.topic(name))}
        return _json(sorted(there.union(here)))

    def _brokers(self, _: Principal, __: bytes) -> bytes:
        """Return the brokers of the cluster with their addresses: every client must know them."""
        known = self._owning.ownership.brokers()
        found = [{"broker_id": one.broker_id, "flight": flight_address(one.addresses)} for one in known]
        return _json([one for one in found if one["flight"] is not None])

    def _topic(self, who: Principal, body: bytes) -> bytes:
        """Describe a topic. A missing one is created only for a caller who may create it."""
        asked = parsed(_Wanted, body, "topic")
        self._owning.check(asked.topic)
        is_new, gate = asked.create, self._node.gate
        resource = access.topic(asked.topic)
        if is_new and (gate.is_on or not gate.allows(who, Action.CREATE, resource)):
            name = TopicName.parse(asked.topic)
            is_new = name not in self._topics.family(name)
            if is_new:
                gate.check(who, Action.CREATE, resource)
        return self._described(self._topics.open(asked.topic, schema=asked.own, create=is_new, by=who))

    def _create(self, who: Principal, body: bytes) -> bytes:
        asked = parsed(_New, body, "create_topic")
        name = TopicName.parse(asked.topic)
        if self._owning.may_tell(who, name):
            self._owning.check(name)
        self._topics.create(name, schema=asked.own, retention=asked.retention, ack=asked.ack, introduce=False, by=who)
        return self._described(self._topics.open(asked.topic, create=False))

    def _create_partitions(self, who: Principal, body: bytes) -> bytes:
        asked = parsed(_NewPartitions, body, "create_partitions")
        name = TopicName.parse(asked.topic)
        if self._owning.may_tell(who, name):
            self._owning.check_family(name)
        made = self._topics.create(
            name, partitions=asked.partitions, retention=asked.retention, ack=asked.ack, introduce=False, by=who
        )
        return _json([self._facts(self._topics.open(str(one), create=False)) for one in made])

    def _delete(self, _: Principal, body: bytes) -> bytes:
        asked = parsed(_Delete, body, "delete_topic")
        name = TopicName.parse(asked.topic)
        self._owning.check_family(name)
        self._topics.delete(name, force=asked.force)
        return _json({})

    def _change_schema(self, _: Principal, body: bytes) -> bytes:
        asked = parsed(_WithSchema, body, "change_schema")
        self._owning.check(asked.topic)
        if asked.own is None:
            raise SchemaMismatch("schema: change_schema needs one", field="schema")
        return self._described(self._topics.change_schema(asked.topic, asked.own))

    def _set_retention(self, _: Principal, body: bytes) -> bytes:
        asked = parsed(_Retention, body, "set_retention")
        self._owning.check(asked.topic)
        self._topics.set_retention(asked.topic, asked.retention)
        return _json({})

    def _stats(self, who: Principal, body: bytes) -> bytes:
        asked = parsed(_Named, body, "topic_stats")
        self._owning.check(asked.topic)
        return _json(self._node.topic(who, asked.topic, Action.DESCRIBE).stats().as_dict())

    def _logs(self, _: Principal, body: bytes) -> bytes:
        """Return where a query finds the rows of a topic. Whatever is not here is named with its broker."""
        asked = parsed(_Logs, body, "topic_logs")
        found = family_logs(self._node.storage, self._owning.ownership, TopicName.parse(asked.topic))
        here = found.here if asked.files else (replace(one, files=(), folder=None) for one in found.here)
        elsewhere = [{"topic": str(at.topic), "broker_id": at.broker_id, "flight": at.flight} for at in found.elsewhere]
        return _json({"here": [as_json(one) for one in here], "elsewhere": elsewhere})

    def _sync(self, who: Principal, body: bytes) -> bytes:
        asked = parsed(_Named, body, "topic_sync")
        self._owning.check(asked.topic)
        return _json({"durable_end": self._node.topic(who, asked.topic, Action.PRODUCE).sync()})

    def _producer(self, who: Principal, body: bytes) -> bytes:
        """Return the name's epoch, which a client reads before it takes the name, to detect a concurrent takeover."""
        asked = parsed(_Producer, body, "producer")
        self._owning.check(asked.topic)
        topic = self._node.topic(who, asked.topic, Action.PRODUCE)
        check_log(topic.log, asked.log_id)
        state = topic.producer_state(own_producer(self._node, who, asked.producer))
        return _json({"epoch": NO_EPOCH if state is None else state.epoch})

    def _described(self, topic: Topic) -> bytes:
        return _json(self._facts(topic))

    def _facts(self, topic: Topic) -> dict[str, Any]:
        wal = self._node.settings.wal
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


def own_producer(node: Node, who: Principal, name: str) -> str:
    """Return the name under which the log keeps a producer. With security on, each principal has its own names.

    The names of this host's own programs stay as they are.
    """
    if not node.gate.is_on or who is LOCAL:
        return name
    check_producer(name)
    own = f"{_hash(who.name)}/{name}"
    return own if len(own) <= NAME_CHARACTERS_MAX else f"{_hash(who.name)}/{_hash(name)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _on(form: type[_Named], action: Action) -> Callable[[bytes], Sequence[Right]]:
    """The rights for a body of that form: an action on its topic."""
    return lambda body: (Right(action, access.topic(parsed(form, body, "body").topic)),)


def _to_read_logs(body: bytes) -> Sequence[Right]:
    asked = parsed(_Logs, body, "topic_logs")
    own = Right(Action.READ, access.topic(asked.topic))
    return (own, *operate(body)) if asked.files else (own,)


def check_log(log: TopicLog, log_id: str | None, offset: int | None = None) -> None:
    """Refuse a client that expects another log. A renumbered log has the same rows below the cut, so readers at an
    `offset` there continue. Unanswered rows sent to it may be stored: unlike with a deleted log."""
    if log_id in (None, log.log_id):
        return
    cut = cut_since(log.former, str(log_id))
    if cut is None:
        raise TopicNotFound(str(log.name), "it was deleted, and another was created under its name; use that one")
    if offset is None or offset > cut:
        raise TopicDiffers(
            str(log.name), f"it was renumbered, and its rows have other offsets from {cut} on; open it again"
        )


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
