"""A topic as a client sees it: the interface of `frazil.Topic`, over the network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from frazil.client.connection import Connection
from frazil.client.identity import ProducerIdentity
from frazil.client.reading import RemoteBatches
from frazil.client.sender import Sender
from frazil.client.subscription import RemoteSubscription
from frazil.client.window import SenderLimits
from frazil.core.clock import Clock
from frazil.core.errors import InvalidInput, SchemaMismatch
from frazil.core.offsets import OffsetRange
from frazil.core.rows import Origin
from frazil.core.rows.columns import schema_from_text
from frazil.core.settings import WalSettings
from frazil.log.read.positions import Start
from frazil.log.stats import TopicStats
from frazil.log.topic import MessageReader
from frazil.log.write.group import Notify
from frazil.log.write.publishing import Outgoing, checked_message, envelope_rows, message_rows, typed_rows


class RemoteTopic:
    """Publish to and read from one topic. Thread-safe."""

    def __init__(
        self,
        connection: Connection,
        answer: Mapping[str, Any],
        identity: ProducerIdentity,
        buffer_bytes_max: int,
        clock: Clock,
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._producer = identity.producer
        self.identity = identity
        self._name: str = answer["topic"]
        self._schema: pa.Schema | None = None
        self._limits = WalSettings(
            message_bytes_max=answer["message_bytes_max"],
            batch_bytes_max=answer["batch_bytes_max"],
            queue_bytes_max=max(answer["batch_bytes_max"], buffer_bytes_max),
        )
        limits = SenderLimits(
            buffer_bytes_max, answer["batch_bytes_max"], answer["batch_rows_max"], connection.give_up_ms
        )
        self._rows_max = limits.batch_rows_max
        self._sender = Sender(connection, self._name, answer["log_id"], identity, limits, clock)
        self.learn(answer)

    @property
    def name(self) -> str:
        return self._name

    @property
    def schema(self) -> pa.Schema | None:
        """The columns of a typed topic; None for a message topic."""
        return self._schema

    @property
    def limits(self) -> WalSettings:
        """The owner's limits: `message_bytes_max` and `batch_bytes_max`."""
        return self._limits

    def publish(
        self, payload: bytes | str, *, key: bytes | str | None = None, attributes: Mapping[str, str] | None = None
    ) -> int:
        """Append one message and return its offset once it is durable according to the owner's sync mode."""
        self.check_is_message_topic()
        return self._sender.append_message(*checked_message(self._limits, payload, key, attributes))

    def publish_many(self, messages: Iterable[bytes | str | Outgoing] | pa.RecordBatch) -> OffsetRange:
        """Append all or nothing, as one batch, and return its offsets once it is durable."""
        rows, size = self._rows(messages)
        first = self._sender.append_batch(rows, size)
        return OffsetRange(first, first + rows.num_rows)

    def open_producer(self) -> None:
        """After `ProducerFenced`, reclaim the producer name from its current client with the next publish."""
        self._sender.open_producer()

    def read(self, start: Start = "earliest", *, end: int | None = None, follow: bool = False) -> MessageReader:
        """Read messages from `start` up to `end`, by default the current end; with `follow`, also later ones."""
        self.check_is_message_topic()
        return MessageReader(self.read_batches(start, end=end, follow=follow))

    def read_batches(self, start: Start = "earliest", *, end: int | None = None, follow: bool = False) -> RemoteBatches:
        """Read Arrow batches; each row has its `_offset` and `_append_time`."""
        return RemoteBatches(self._connection, self._name, start, end, follow)

    def subscribe(
        self, name: str, *, kind: str = "exclusive", consumer: str | None = None, key_filters: Sequence[str] = ()
    ) -> RemoteSubscription:
        """Read the messages of a subscription, each to be acknowledged; a new one begins with the next published
        message.

        `kind` is exclusive, shared, failover or key-shared. A `consumer` is identified by its name when it reconnects.
        """
        self.check_is_message_topic()
        asked: dict[str, Any] = {
            "topic": self._name,
            "subscription": name,
            "kind": kind,
            "consumer": consumer or self._producer,
        }
        asked["key_filters"] = list(key_filters)
        return RemoteSubscription(self._connection, asked)

    def stats(self) -> TopicStats:
        return TopicStats.of(self._connection.act_until("topic_stats", topic=self._name))

    def sync(self) -> int:
        """Make all written rows durable in any sync mode; returns the durable end."""
        return int(self._connection.act_until("topic_sync", topic=self._name)["durable_end"])

    # --- for the asyncio client

    def begin_publish(
        self, payload: Any, key: Any, attributes: Any, notify: Notify, token: object, origin: Origin | None = None
    ) -> None:
        self.check_is_message_topic()
        row, size = checked_message(self._limits, payload, key, attributes, origin)
        self._sender.begin_message(row, size, notify, token)

    def begin_publish_many(self, messages: Any, notify: Notify, token: object) -> int:
        """Return the number of rows queued."""
        rows, size = self._rows(messages)
        self._sender.begin_batch(rows, size, notify, token)
        return int(rows.num_rows)

    def check_is_message_topic(self) -> None:
        if self._schema is not None:
            raise SchemaMismatch(f"{self.name} is a typed topic: use publish_many with record batches and read_batches")

    # --- for its storage

    def learn(self, answer: Mapping[str, Any]) -> None:
        """Update the topic's columns from the owner's answer."""
        text = answer["schema"]
        self._schema = None if text is None else schema_from_text(text)

    def close(self) -> None:
        self._sender.close()

    def _rows(self, messages: Any) -> tuple[pa.RecordBatch, int]:
        rows, size = self._checked(messages)
        if rows.num_rows > self._rows_max:
            raise InvalidInput(
                f"the batch has {rows.num_rows} rows, and may have batch_rows_max = {self._rows_max}; "
                "send smaller batches",
                rows=rows.num_rows,
                limit_rows=self._rows_max,
            )
        return rows, size

    def _checked(self, messages: Any) -> tuple[pa.RecordBatch, int]:
        now_us = self._clock.now_us()
        if isinstance(messages, pa.RecordBatch):
            if self._schema is None:
                return envelope_rows(self._limits, messages, now_us)
            try:
                return typed_rows(self._limits, messages, self._schema)
            except SchemaMismatch:  # it may have changed since the last answer
                before = self._schema
                self.learn(self._connection.act_until("topic", topic=self._name))
                if self._schema is None or before.equals(self._schema):
                    raise
                return typed_rows(self._limits, messages, self._schema)
        self.check_is_message_topic()
        if isinstance(messages, str | bytes | bytearray | memoryview | Mapping) or not isinstance(messages, Iterable):
            raise InvalidInput(f"publish_many takes many messages or a RecordBatch, not one {type(messages).__name__}")
        return message_rows(self._limits, messages, now_us)
