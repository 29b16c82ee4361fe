"""Streams of batches from clients into the log, many of them on their way at once.

    descriptor      {"topic", "log_id", "producer", "client", "held", "seen"}: who sends, see `core.sequences.Opening`.
                    Without `client` it is a new one, which takes the name from whoever has it
    first answer    {"epoch", "next_sequence", "recent", "resumed"}: how it goes on, what the log has of what was sent
                    last under this epoch, and whether the epoch was this client's before
    each batch      with a note that has its "sequence", the number of its first row in the producer's own counting;
                    see `frazil.core.put_notes`, also for what may come in place of an Arrow batch
    each answer     {"acked": [[sequence, first offset], …]}, or {"sequence", "error"} for the one that was refused

Batches are taken in their order. After one that is refused no more are taken: what was begun is answered, and the
stream ends, so that a client knows of each batch whether it may send it again. A log whose queue is full is waited for,
which a client feels as a stream that takes no more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import grpc
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from frazil.core.errors import FrazilError, Overloaded, SchemaMismatch
from frazil.core.put_notes import FewRow
from frazil.core.rows import ENVELOPE
from frazil.core.sequences import NO_EPOCH, Opened, Opening, ProducerState, Sent, check_producer, new_client_id
from frazil.core.settings import MIB, FlightSettings
from frazil.log.group import Part, call_on
from frazil.log.publishing import check_safe
from frazil.log.storage import Storage
from frazil.log.topic import Topic
from frazil.serve.flight_calls import Calls, Context, as_json, checked, first_of
from frazil.serve.flight_notes import Few, Given, Note, Room, assembled, check_size, few, noted
from frazil.serve.flight_pb2 import PutResult
from frazil.serve.flight_topics import check_log
from frazil.serve.flight_wire import Received, received_batch, received_schema
from frazil.serve.movers import parsed
from frazil.serve.request_ids import current

if TYPE_CHECKING:
    from frazil.serve.schema_checks import SchemaChecks
    from frazil.serve.traces import Traces

BEGUN_MAX = 64
"""Of one stream: the log remembers as many, so that each of them can be recognised when it is sent again."""
DIRECT_BYTES_MAX = MIB
"""A larger batch is checked in a thread: the loop has others to serve."""
REQUEST_BYTES_MAX = 4096
WAIT_SECONDS_MAX = 30.0

Count = Annotated[int, Field(ge=0, lt=2**62)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _Opening(_Frozen):
    topic: str
    log_id: str | None = None
    producer: str = Field(min_length=1, max_length=255)
    client: str | None = None
    held: Count | None = None
    seen: int | None = Field(None, ge=NO_EPOCH, lt=2**62)


class _Put:
    """One batch between its arrival and its answer."""

    __slots__ = ("began_us", "begun", "done", "error", "offset", "rows", "sequence", "size_bytes", "stream", "traces")

    def __init__(self, stream: _Stream, note: Note, size_bytes: int, began_us: int) -> None:
        self.stream = stream
        self.sequence = note.sequence
        self.traces = note.traces or stream.traces
        self.size_bytes = size_bytes
        self.began_us = began_us
        self.rows: pa.RecordBatch | list[FewRow] | None = None
        self.offset = -1
        self.error: FrazilError | None = None
        self.begun = self.done = False


class Publishing:
    def __init__(
        self,
        storage: Storage,
        settings: FlightSettings,
        calls: Calls,
        checks: SchemaChecks | None = None,
        traces: Traces | None = None,
    ) -> None:
        self.storage = storage
        self.settings = settings
        self.calls = calls
        self.assembling = Room(settings.buffer_bytes_max)
        self.checks = checks
        self.traces = traces
        self._held_bytes = 0
        self._room = asyncio.Event()
        self._room.set()

    async def put(self, context: Context) -> None:
        first = await first_of(context)
        if first is grpc.aio.EOF:
            return
        with self.calls.stream():
            asked = parsed(_Opening, first.command, "descriptor", REQUEST_BYTES_MAX)
            topic = await self.calls.blocking(self.storage.topic, asked.topic, create=False)
            check_log(topic.log, asked.log_id)
            schema = received_schema(first)
            _check_columns(topic, schema)
            opened = await self.calls.blocking(_opened, topic, asked)
            await context.write(PutResult(app_metadata=as_json(_as_told(opened))))
            await _Stream(self, context, topic, schema, asked.producer, opened.state).serve()

    # --- what all streams hold together

    async def has_room(self) -> None:
        """A stream reads on only when there is; each may then hold one message more than the limit."""
        await self._room.wait()

    def hold(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        if self._held_bytes >= self.settings.buffer_bytes_max:
            self._room.clear()

    def let_go(self, size_bytes: int) -> None:
        self._held_bytes -= size_bytes
        if self._held_bytes < self.settings.buffer_bytes_max:
            self._room.set()

    def settled(self, part: Part) -> None:
        """Called by a committer."""
        call_on(self.calls.loop, _settle, part)


class _Stream:
    def __init__(
        self,
        publishing: Publishing,
        context: Context,
        topic: Topic,
        schema: pa.Schema,
        producer: str,
        state: ProducerState,
    ) -> None:
        self._publishing = publishing
        self._context = context
        self._topic = topic
        self._schema = schema
        self._producer = producer
        self._epoch, self._number = state.epoch, state.stream
        self._begun: deque[_Put] = deque()
        self._moved = asyncio.Event()
        self._room = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._gone = False
        asked = current()
        self.traces = () if asked is None or asked.trace_parent is None else ((0, asked.trace_parent),)
        """Of batches that come without."""

    async def serve(self) -> None:
        self._reading = asyncio.create_task(self._read(), name="flight put")
        self._reading.add_done_callback(lambda _: self._moved.set())
        try:
            with self._publishing.calls.until_end(self._take_no_more):
                await self._answer(self._reading)
        finally:
            self._gone = True
            self._reading.cancel()
        if not self._reading.cancelled() and (error := self._reading.exception()) is not None:
            raise error
        self._publishing.calls.check_open()

    async def _answer(self, reading: asyncio.Task[None]) -> None:
        """Until all that was begun is answered."""
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
            told = ",".join(f"[{sequence},{offset}]" for sequence, offset in acked)
            await self._context.write(PutResult(app_metadata=b'{"acked":[%s]}' % told.encode()))

    async def _read(self) -> None:
        while True:
            await self._has_room()
            data = checked(await self._context.read())
            if data is grpc.aio.EOF:
                return
            note, following = noted(data)
            traces = self._publishing.traces
            put = _Put(self, note, data.size_bytes, 0 if traces is None else traces.now_us())
            self._publishing.hold(put.size_bytes)
            self._begun.append(put)
            try:
                given = await self._given(data, note, following, put)
                await self._check(given)
                await self._begin(given, put)
            except FrazilError as error:
                put.error, put.done = error, True
                self._publishing.let_go(put.size_bytes)
                if traces is not None:
                    traces.refused_batch(self._topic.log, error, put.began_us, put.traces)
                return
            finally:
                if not put.begun and not put.done:  # the door closes: without an answer its client sends it again
                    self._begun.remove(put)
                    self._publishing.let_go(put.size_bytes)

    async def _has_room(self) -> None:
        while len(self._begun) >= BEGUN_MAX:
            self._room.clear()
            await self._room.wait()
        await self._publishing.has_room()

    async def _given(self, data: Received, note: Note, following: memoryview, put: _Put) -> Given:
        if note.rows is not None:
            return few(note, following, self._publishing.settings)
        if note.bytes is None:
            return data
        check_size(note, self._publishing.settings)
        async with self._publishing.assembling.of(note.bytes):
            message = await assembled(self._context, note, following)
            self._publishing.hold(len(message) - put.size_bytes)
            put.size_bytes = len(message)
        return message

    async def _check(self, given: Given) -> None:
        """By the schema that the topic has in the registry, if it has one: then each message is looked at."""
        checks, name = self._publishing.checks, self._topic.name
        if checks is None or self._topic.schema is not None or checks.passes_all(name):
            return
        await checks.check_all(name, lambda: _messages(given, self._schema, self._publishing.settings))

    async def _begin(self, given: Given, put: _Put) -> None:
        """In the log's queue, or an error that says why not; a queue that is full is waited for."""
        waited = 0.0
        while True:
            try:
                if put.size_bytes > DIRECT_BYTES_MAX:
                    await self._begin_in_thread(given, put)
                else:
                    self._begin_now(given, put)
            except Overloaded as full:
                pause = full.fields["retry_after_ms"] / 1_000
                waited += pause
                if waited > WAIT_SECONDS_MAX:
                    raise
                await asyncio.sleep(pause)
            else:
                return

    async def _begin_in_thread(self, given: Given, put: _Put) -> None:
        work = asyncio.ensure_future(self._publishing.calls.blocking(self._begin_now, given, put))
        try:
            await asyncio.shield(work)
        finally:
            await asyncio.wait([work])  # whoever ends the stream must know whether it was begun

    def _begin_now(self, given: Given, put: _Put) -> None:
        sent = Sent(self._producer, self._epoch, put.sequence, self._number)
        settled = self._publishing.settled
        traced = self._publishing.traces is not None
        if isinstance(given, Few):
            put.rows = given.rows if traced else None
            self._topic.begin_publish_few(given.rows, given.time_us, settled, put, sent)
        else:
            batch = received_batch(given, self._schema, self._publishing.settings)
            put.rows = batch if traced else None
            self._topic.begin_publish_many(batch, settled, put, sent)
        put.begun = True

    def settle(self, put: _Put) -> None:
        self._publishing.let_go(put.size_bytes)
        self._trace(put)
        if put.error is not None:
            self._take_no_more()
        self._moved.set()

    def _trace(self, put: _Put) -> None:
        traces, rows, put.rows = self._publishing.traces, put.rows, None
        if traces is None or rows is None:
            return
        if put.error is None:
            traces.published_batch(self._topic.log, rows, put.offset, put.began_us, put.traces)
        else:
            traces.refused_batch(self._topic.log, put.error, put.began_us, put.traces)

    def _take_no_more(self) -> None:
        if self._reading is not None:
            self._reading.cancel()


def _settle(part: Part) -> None:
    for put in part.tokens:
        put.offset, put.error, put.done = part.first_offset, part.error, True
        put.stream.settle(put)


def _opened(topic: Topic, asked: _Opening) -> Opened:
    check_producer(asked.producer)
    client = new_client_id() if asked.client is None else asked.client
    return topic.log.open_producer(asked.producer, Opening(client, asked.held, asked.seen))


def _as_told(opened: Opened) -> dict[str, Any]:
    state = opened.state
    return {
        "epoch": state.epoch,
        "next_sequence": state.next_sequence,
        "recent": state.recent,
        "resumed": opened.resumed,
    }


def _messages(
    given: Given, schema: pa.Schema, limits: FlightSettings
) -> Iterable[tuple[bytes, int | None, int | None]]:
    """Payload, id and version of the schema that each names. Of what is no message, whoever takes it says why."""
    if isinstance(given, Few):
        return [(row.payload, None, None) for row in given.rows]
    batch = received_batch(given, schema, limits)
    check_safe(batch)
    wanted = ("_payload", "_schema_id", "_schema_version")
    columns = [batch.column(name).to_pylist() if name in schema.names else [None] * len(batch) for name in wanted]
    return ((payload or b"", schema_id, version) for payload, schema_id, version in zip(*columns, strict=True))


def _check_columns(topic: Topic, schema: pa.Schema) -> None:
    """The types of a stream are those of the topic: nothing else is even decoded."""
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
