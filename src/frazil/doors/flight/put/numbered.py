"""Streams of numbered batches from Frazil's own client, with many batches in flight.

    descriptor      {"topic", "log_id", "producer", "client", "held", "seen"}: the sender, see `ProducerOpening`.
                    Without `client` it is a new client, which takes over the name
    first answer    {"epoch", "next_sequence", "recent", "resumed"}: the next sequence, the batches of
                    this epoch that were stored last, and whether this client had the epoch before
    each batch      has a note with its "sequence", the producer's number of its first row;
                    see `frazil.core.put_notes`, also for alternatives to an Arrow batch
    each answer     {"acked": [[sequence, first offset], …]}, or {"sequence", "error"} for the one that was refused

After a refused batch, all queued ones are answered and the stream ends, so that a client knows for each batch whether
it may send it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any

import pyarrow as pa
from pydantic import Field

from frazil.core.errors import SchemaMismatch
from frazil.core.rows import ENVELOPE
from frazil.core.sequences import NO_EPOCH, Opened, ProducerOpening, ProducerState, Sent, check_producer, new_client_id
from frazil.doors.admission import StreamRights
from frazil.doors.calls import Context
from frazil.doors.flight.calls import as_json
from frazil.doors.flight.flight_pb2 import PutResult
from frazil.doors.flight.movers import parsed
from frazil.doors.flight.put.intake import WAIT_SECONDS_MAX, Intake, Put, PuttingStream
from frazil.doors.flight.put.notes import Few, Given, Note, assembled, check_size, few, noted
from frazil.doors.flight.requests import FlightRequest
from frazil.doors.flight.topics import check_log, own_producer
from frazil.doors.flight.wire import Received, received_batch, received_schema
from frazil.node.publish.publishers import BatchPublisher, judged
from frazil.node.publish.schema_checks import Judged
from frazil.node.types.log import Topic

REQUEST_BYTES_MAX = 4096

Count = Annotated[int, Field(ge=0, lt=2**62)]


class _Opening(FlightRequest):
    topic: str
    log_id: str | None = None
    producer: str = Field(min_length=1, max_length=255)
    client: str | None = None
    held: Count | None = None
    seen: int | None = Field(None, ge=NO_EPOCH, lt=2**62)


async def put_numbered(intake: Intake, context: Context, first: Received) -> None:
    asked = parsed(_Opening, first.command, "descriptor", REQUEST_BYTES_MAX)
    rights = intake.rights(context, asked.topic)
    publisher = await intake.publisher(rights, asked.topic)
    topic = publisher.topic
    check_log(topic.log, asked.log_id)
    schema = received_schema(first)
    _check_columns(topic, schema)
    producer = own_producer(intake.node, rights.who, asked.producer)
    opened = await intake.calls.blocking(_opened, topic, producer, asked)
    await context.write(PutResult(app_metadata=as_json(_first_answer(opened))))
    await _NumberedStream(intake, context, rights, publisher, schema, producer, opened.state).serve()


class _NumberedPut(Put):
    __slots__ = ("following", "note", "sequence")

    def __init__(self, stream: _NumberedStream, note: Note, following: memoryview, size_bytes: int) -> None:
        super().__init__(stream, note.traces, size_bytes)
        self.sequence = note.sequence
        self.note = note
        self.following = following


class _NumberedStream(PuttingStream):
    def __init__(
        self,
        intake: Intake,
        context: Context,
        rights: StreamRights,
        publisher: BatchPublisher,
        schema: pa.Schema,
        producer: str,
        state: ProducerState,
    ) -> None:
        super().__init__(intake, context, rights, publisher, schema)
        self._topic_publisher = publisher
        self._producer = producer
        self._epoch, self._number = state.epoch, state.stream

    async def _answer(self, reading: asyncio.Task[None]) -> None:
        while self._begun or not reading.done():
            await self._moved.wait()
            self._moved.clear()
            acked: list[tuple[int, int]] = []
            while self._begun and self._begun[0].done:
                put = self._begun.popleft()
                if put.error is None:
                    acked.append((put.sequence, put.offset))
                    continue
                await self._tell_acked(acked)
                acked = []
                error = {"sequence": put.sequence, "error": put.error.as_dict()}
                await self._context.write(PutResult(app_metadata=as_json(error)))
            await self._tell_acked(acked)
            self._room.set()

    async def _tell_acked(self, acked: list[tuple[int, int]]) -> None:
        if acked:
            pairs = ",".join(f"[{sequence},{offset}]" for sequence, offset in acked)
            await self._context.write(PutResult(app_metadata=b'{"acked":[%s]}' % pairs.encode()))

    def _put_of(self, data: Received) -> _NumberedPut:
        return _NumberedPut(self, *noted(data), data.size_bytes)

    async def _take(self, data: Received, put: _NumberedPut) -> None:
        given = await self._given(data, put)
        await self._publisher.check(partial(self._messages, given))
        await self._begin(given, put)

    async def _given(self, data: Received, put: _NumberedPut) -> Given:
        note, following = put.note, put.following
        put.following = memoryview(b"")
        if note.rows is not None:
            return few(note, following, self._intake.settings)
        if note.bytes is None:
            return data
        check_size(note, self._intake.settings)
        budget = self._intake.assembling
        with budget.holding():
            await budget.take(self._sender, note.bytes, WAIT_SECONDS_MAX)
            message = await assembled(self._context, note, following)
            self._rights.take(max(0, len(message) - put.size_bytes))  # the first piece is counted already
            self._intake.hold(len(message) - put.size_bytes, self._sender)
            put.size_bytes = len(message)
        return message

    def _messages(self, given: Given) -> Iterable[Judged]:
        """Return the messages for the schema check. The log itself refuses batches without messages."""
        if isinstance(given, Few):
            return [(row.payload, None, None) for row in given.rows]
        return judged(received_batch(given, self._schema, self._intake.settings))

    def _begin_now(self, given: Given, put: _NumberedPut) -> None:
        sent = Sent(self._producer, self._epoch, put.sequence, self._number)
        settled = self._intake.settled
        traced = self._publisher.is_traced
        if isinstance(given, Few):
            put.rows = given.rows if traced else None
            self._topic_publisher.begin_few(given.rows, given.time_us, settled, put, sent)
        else:
            batch = received_batch(given, self._schema, self._intake.settings)
            put.rows = batch if traced else None
            self._publisher.begin_many(batch, settled, put, sent)
        put.begun = True


def _opened(topic: Topic, producer: str, asked: _Opening) -> Opened:
    check_producer(producer)
    client = new_client_id() if asked.client is None else asked.client
    return topic.log.open_producer(producer, ProducerOpening(client, asked.held, asked.seen))


def _first_answer(opened: Opened) -> dict[str, Any]:
    state = opened.state
    return {
        "epoch": state.epoch,
        "next_sequence": state.next_sequence,
        "recent": state.recent,
        "resumed": opened.resumed,
    }


def _check_columns(topic: Topic, schema: pa.Schema) -> None:
    """Check that the types of a stream are those of the topic, before anything is decoded."""
    own = topic.schema
    for field in schema:
        if own is None:
            known = field.name in ENVELOPE.names and ENVELOPE.field(field.name).type == field.type
        else:
            known = field.name in own.names and own.field(field.name).type == field.type
        if not known:
            raise SchemaMismatch(
                f"column {field.name!r} of type {field.type} is not among the columns of {topic.name}", field=field.name
            )
