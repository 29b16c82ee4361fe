"""Subscriptions over Flight, each one bidirectional stream, by the broker's rules.

    descriptor      {"topic", "subscription", "kind", "consumer", "key_filters"}
    to the client   {"incarnation": n} before the first messages and after a reset, messages as rows, and periodically
                    an empty note
    from it         {"ack": [offset, …], "incarnation"} and {"nack": offset, "delay_ms", "reason", "incarnation"}

An answer carries the incarnation of its message: after a reset, answers to earlier deliveries are void.

Unanswered messages are redelivered when the stream ends. Runs on the broker's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Annotated

import grpc
import pyarrow as pa
from pydantic import Field

from frazil.core.access import Action
from frazil.core.errors import ConsumerReplaced, InvalidInput, SubscriptionNotFound, TopicNotFound
from frazil.core.rows import ENVELOPE, OFFSET
from frazil.doors.admission import StreamRights
from frazil.doors.calls import Context, checked
from frazil.doors.flight.calls import Calls, first_of
from frazil.doors.flight.movers import parsed
from frazil.doors.flight.requests import FlightRequest
from frazil.doors.flight.wire import batch_data, note_data, schema_data
from frazil.doors.rights import of_subscription
from frazil.node.node import Node
from frazil.node.types.broker import Broker, Entry, Kind, LiveSubscription, Subscription

REQUEST_BYTES_MAX = 64 * 1024
ENTRIES_MAX = 256
"""Messages sent together."""
QUIET_SECONDS = 1.0
DELIVERED = pa.schema([OFFSET, *ENVELOPE])

Offset = Annotated[int, Field(ge=0, lt=2**63)]


class _Asked(FlightRequest):
    topic: str
    subscription: str
    kind: str
    consumer: str
    key_filters: list[str] = []


class _ConsumerAnswer(FlightRequest):
    ack: list[Offset] = Field([], max_length=10_000)
    nack: Offset | None = None
    delay_ms: int | None = Field(None, ge=0, lt=2**40)
    reason: str = Field("refused by its consumer", max_length=1_000)
    incarnation: Offset | None = None


class Subscriptions:
    def __init__(self, node: Node, calls: Calls) -> None:
        self._node = node
        self._calls = calls

    async def exchange(self, context: Context) -> None:
        first = await first_of(context)
        if first is grpc.aio.EOF:
            return
        with self._calls.stream():
            asked = parsed(_Asked, first.command, "descriptor", REQUEST_BYTES_MAX)
            if not self._node.has_broker:
                raise InvalidInput("subscriptions need the broker: set broker.enabled", field="broker.enabled")
            rights = self._calls.rights(
                context, asked.topic, *of_subscription(asked.topic, asked.subscription, Action.CONSUME)
            )
            rights.admit()
            broker = self._node.broker(rights.who)
            await broker.make_known(asked.topic)
            kind = _kind(asked.kind)
            took_over = _is_connected(broker, asked)
            number = await self._node.subscribe(
                rights.who, asked.topic, asked.subscription, kind, asked.consumer, asked.key_filters
            )
            _, subscription, consumer, stream = broker.connect(number)
            answers = asyncio.create_task(_take_answers(subscription, context, rights), name="flight answers")
            answers.add_done_callback(lambda _: stream.end())
            try:
                with rights.open(stream.end), self._calls.until_end(stream.end):
                    await context.write(schema_data(DELIVERED))
                    await context.write(note_data({"consumer": consumer.name, "took_over": took_over}))
                    incarnation = 0
                    while not stream.ended:
                        try:
                            now, entries = await asyncio.wait_for(stream.take_some(ENTRIES_MAX), QUIET_SECONDS)
                        except TimeoutError:
                            await context.write(note_data({}))
                            continue
                        if entries:
                            rows = _rows(entries)
                            await rights.give(rows.nbytes)
                            data = batch_data(rows)
                            if now != incarnation:
                                incarnation = now
                                await context.write(note_data({"incarnation": incarnation}))
                            await context.write(data)
            finally:
                answers.cancel()
                subscription.disconnect(consumer, stream)
            if answers.done() and not answers.cancelled() and (error := answers.exception()) is not None:
                raise error
            self._calls.check_open()
            self._calls.owning.check(asked.topic)
            if stream.is_replaced:
                raise ConsumerReplaced(asked.topic, asked.subscription, consumer.name)
            if broker.has_forgotten(number):
                raise SubscriptionNotFound.deleted(asked.topic, asked.subscription)


async def _take_answers(subscription: Subscription | LiveSubscription, context: Context, rights: StreamRights) -> None:
    while (data := checked(await context.read())) is not grpc.aio.EOF:
        await rights.give(len(data.note))  # also answers cost time: a caller beyond its quota is read more slowly
        answer = parsed(_ConsumerAnswer, data.note, "answer", REQUEST_BYTES_MAX * 4)
        for offset in answer.ack:
            subscription.ack(offset, answer.incarnation)
        if answer.nack is not None:
            delay_us = None if answer.delay_ms is None else answer.delay_ms * 1_000
            subscription.nack(answer.nack, delay_us, answer.reason, answer.incarnation)


def _is_connected(broker: Broker, asked: _Asked) -> bool:
    with contextlib.suppress(TopicNotFound, InvalidInput):
        mine = broker.subscription(asked.topic, asked.subscription).consumers.get(asked.consumer)
        return mine is not None and mine.stream is not None
    return False


def _rows(entries: Sequence[Entry]) -> pa.RecordBatch:
    columns = dict(
        zip(entries[0].message._fields, zip(*(entry.message for entry in entries), strict=True), strict=True)
    )
    columns["attributes"] = tuple(list(pairs.items()) for pairs in columns["attributes"])
    arrays = [pa.array(columns[field.name.removeprefix("_")], field.type) for field in DELIVERED]
    return pa.RecordBatch.from_arrays(arrays, schema=DELIVERED)


def _kind(name: str) -> Kind:
    try:
        return Kind(name)
    except ValueError:
        raise InvalidInput(f"kind: must be one of {', '.join(Kind)}, not {name!r:.80}", field="kind") from None
