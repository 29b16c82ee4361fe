"""A topic as its user sees it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import pyarrow as pa

from frazil.core.errors import InvalidInput, SchemaMismatch
from frazil.core.offsets import OffsetRange
from frazil.core.put_notes import FewRow
from frazil.core.rows import Message, Origin, to_messages
from frazil.core.sequences import ProducerOpening, ProducerState, Sent, check_producer
from frazil.log.read.positions import Start, check_end, resolve_start
from frazil.log.read.reader import BatchReader
from frazil.log.stats import TopicStats, topic_stats
from frazil.log.topic_log import TopicLog
from frazil.log.uninterrupted import uninterrupted
from frazil.log.write.group import Notify
from frazil.log.write.publishing import Outgoing, checked_message, envelope_rows, few_messages, message_rows, typed_rows


class Topic:
    """Publish to and read from one topic. Thread-safe."""

    def __init__(self, log: TopicLog) -> None:
        self._log = log
        self._context = log.context

    @property
    def name(self) -> str:
        return str(self._log.name)

    @property
    def schema(self) -> pa.Schema | None:
        """The columns of a typed topic; None for a message topic."""
        return self._log.own_schema

    def publish(
        self, payload: bytes | str, *, key: bytes | str | None = None, attributes: Mapping[str, str] | None = None
    ) -> int:
        """Append one message and return its offset once it is durable according to the sync mode."""
        self._context.process.check()
        self.check_is_message_topic()
        return self._log.append_message(*checked_message(self._context.settings, payload, key, attributes))

    def publish_many(
        self, messages: Iterable[bytes | str | Outgoing] | pa.RecordBatch, *, sent: Sent | None = None
    ) -> OffsetRange:
        """Append all or nothing, as one batch, and return its offsets once it is durable.

        A typed topic takes a `RecordBatch` of its schema; a message topic takes messages, or a `RecordBatch` with
        `_payload` and other envelope columns. With `sent` the batch is numbered by its producer: a duplicate is not
        stored again, and gets the original offsets.
        """
        self._context.process.check()
        rows, size = self._rows(messages)
        first = self._log.append_batch(rows, size, sent)
        return OffsetRange(first, first + rows.num_rows)

    def open_producer(self, name: str, *, client: str | None = None) -> ProducerState:
        """Take the name of a producer, durably, and return its state; its previous clients are refused.

        A `client` that opens it again with the same id keeps its epoch. Without an id this is a new client.
        """
        self._context.process.check()
        check_producer(name)
        opening = ProducerOpening(client) if client is not None else ProducerOpening.of_new_client()
        return uninterrupted(lambda: self._log.open_producer(name, opening).state)

    def producer_state(self, name: str) -> ProducerState | None:
        """Return the state of a producer; None if it is unknown or forgotten."""
        self._context.process.check()
        return self._log.producer_state(name)

    def read(self, start: Start = "earliest", *, end: int | None = None, follow: bool = False) -> MessageReader:
        """Read messages from `start` up to `end`, by default the current end; with `follow`, also later ones."""
        self.check_is_message_topic()
        return MessageReader(self.read_batches(start, end=end, follow=follow))

    def read_batches(self, start: Start = "earliest", *, end: int | None = None, follow: bool = False) -> BatchReader:
        """Read Arrow batches; each row has its `_offset` and `_append_time`."""
        self._context.process.check()
        check_end(end)
        return BatchReader(self._log, resolve_start(self._log, start), end, follow=follow)

    def stats(self) -> TopicStats:
        """Return the figures over both tiers. It asks the catalog, with a timeout of a few seconds."""
        return topic_stats(self._log)

    def sync(self) -> int:
        """Make all written rows durable in any sync mode; returns the durable end."""
        self._context.process.check()
        return uninterrupted(self._log.sync)

    # --- for the asyncio interface

    def begin_publish(
        self,
        payload: Any,
        key: Any,
        attributes: Any,
        notify: Notify,
        token: object,
        origin: Origin | None = None,
    ) -> None:
        self._context.process.check()
        log = self._log
        if log.own_schema is not None:
            self.check_is_message_topic()
        row, size = checked_message(self._context.settings, payload, key, attributes, origin)
        log.begin_message(row, size, notify, token)

    def begin_publish_many(self, messages: Any, notify: Notify, token: object, sent: Sent | None = None) -> int:
        """Return how many rows were queued, or were before if the batch is a duplicate."""
        self._context.process.check()
        rows, size = self._rows(messages)
        self._log.begin_batch(rows, size, notify, token, sent)
        return int(rows.num_rows)

    def begin_publish_few(
        self, rows: Iterable[FewRow], time_us: int, notify: Notify, token: object, sent: Sent
    ) -> None:
        """Queue a few messages of a client, published at that time of its clock."""
        self._context.process.check()
        self.check_is_message_topic()
        messages, size = few_messages(self._context.settings, rows, time_us)
        self._log.begin_batch(messages, size, notify, token, sent)

    @property
    def log(self) -> TopicLog:
        return self._log

    def check_is_message_topic(self) -> None:
        if self._log.own_schema is not None:
            raise SchemaMismatch(f"{self.name} is a typed topic: use publish_many with record batches and read_batches")

    def _rows(self, messages: Any) -> tuple[pa.RecordBatch, int]:
        settings, now_us = self._context.settings, self._context.clock.now_us()
        own = self._log.own_schema
        if isinstance(messages, pa.RecordBatch):
            return envelope_rows(settings, messages, now_us) if own is None else typed_rows(settings, messages, own)
        self.check_is_message_topic()
        if isinstance(messages, str | bytes | bytearray | memoryview | Mapping) or not isinstance(messages, Iterable):
            raise InvalidInput(f"publish_many takes many messages or a RecordBatch, not one {type(messages).__name__}")
        return message_rows(settings, messages, now_us)


class Batches(Protocol):
    def __next__(self) -> pa.RecordBatch: ...

    def close(self) -> None: ...


class MessageReader(Iterator[Message]):
    """Messages one by one, decoded a batch at a time."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._ready: Iterator[Message] = iter(())

    def __next__(self) -> Message:
        for message in self._ready:
            return message
        self._ready = iter(to_messages(next(self._batches)))
        return next(self._ready)

    def close(self) -> None:
        self._batches.close()
