"""Subscriptions over Flight, each of them one stream in both directions, on the broker's own rules.

    descriptor      {"topic", "subscription", "kind", "consumer", "key_filters"}
    to the client   {"incarnation": n} before the first messages and after a reset, messages as rows, and now and then
                    an empty note
    from it         {"ack": [offset, …], "incarnation"} and {"nack": offset, "delay_ms", "reason", "incarnation"}

An answer carries the incarnation that its message came with: after a reset, answers to earlier deliveries are void.

What has no answer when the stream ends is delivered again. Runs on the broker's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Annotated

import grpc
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from frazil.broker.broker import Broker
from frazil.broker.delivery.assignment import Kind
from frazil.broker.entry import Entry
from frazil.broker.live import LiveSubscription
from frazil.broker.subscription import Subscription
from frazil.core.errors import ConsumerReplaced, InvalidInput, SubscriptionNotFound, TopicNotFound
from frazil.core.rows import ENVELOPE, OFFSET
from frazil.serve.flight_calls import Calls, Context, checked, first_of
from frazil.serve.flight_wire import batch_data, note_data, schema_data
from frazil.serve.movers import parsed

REQUEST_BYTES_MAX = 64 * 1024
ENTRIES_MAX = 256
"""So many messages go out together."""
QUIET_SECONDS = 1.0
DELIVERED = pa.schema([OFFSET, *ENVELOPE])

Offset = Annotated[int, Field(ge=0, lt=2**63)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _Asked(_Frozen):
    topic: str
    subscription: str
    kind: str
    consumer: str
    key_filters: list[str] = []


class _Answer(_Frozen):
    ack: list[Offset] = Field([], max_length=10_000)
    nack: Offset | None = None
    delay_ms: int | None = Field(None, ge=0, lt=2**40)
    reason: str = Field("refused by its consumer", max_length=1_000)
    incarnation: Offset | None = None


class Subscriptions:
    def __init__(self, broker_of: Callable[[], Broker | None], calls: Calls) -> None:
        self._broker_of = broker_of
        self._calls = calls

    async def exchange(self, context: Context) -> None:
        first = await first_of(context)
        if first is grpc.aio.EOF:
            return
        with self._calls.stream():
            asked = parsed(_Asked, first.command, "descriptor", REQUEST_BYTES_MAX)
            broker = self._broker_of()
            if broker is None:
                raise InvalidInput("subscriptions need the broker: set broker.enabled", field="broker.enabled")
            await broker.make_known(asked.topic)
            kind = _kind(asked.kind)
            took_over = _is_connected(broker, asked)
            number = await broker.subscribe(asked.topic, asked.subscription, kind, asked.consumer, asked.key_filters)
            _, subscription, consumer, stream = broker.connect(number)
            answers = asyncio.create_task(_take_answers(subscription, context), name="flight answers")
            answers.add_done_callback(lambda _: stream.end())
            try:
                with self._calls.until_end(stream.end):
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
                            data = batch_data(_rows(entries))
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
            if stream.is_replaced:
                raise ConsumerReplaced(asked.topic, asked.subscription, consumer.name)
            if broker.has_forgotten(number):
                raise SubscriptionNotFound.deleted(asked.topic, asked.subscription)


async def _take_answers(subscription: Subscription | LiveSubscription, context: Context) -> None:
    while (data := checked(await context.read())) is not grpc.aio.EOF:
        answer = parsed(_Answer, data.note, "answer", REQUEST_BYTES_MAX * 4)
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
