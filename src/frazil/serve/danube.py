"""The door for Danube clients: their gRPC services over the broker, and nothing of its own.

Every error of the broker becomes a status that their clients understand. What they answer with a retry (UNAVAILABLE,
RESOURCE_EXHAUSTED) is used for what a retry can mend.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any, NoReturn

import grpc
import grpc.aio
from danube.proto import DanubeApi_pb2 as pb
from danube.proto import SchemaRegistry_pb2
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from frazil.broker.broker import Broker
from frazil.broker.choice import Kind
from frazil.broker.counts import BrokerCounts
from frazil.broker.topic import BrokerTopic, Outgoing
from frazil.core.broker_settings import BrokerSettings
from frazil.core.errors import (
    Closed,
    DiskBudgetExceeded,
    DiskFull,
    FrazilError,
    IncompatibleSchema,
    InvalidInput,
    ListenFailed,
    LogFailed,
    MetadataUnavailable,
    Overloaded,
    SchemaNotFound,
    SubjectMismatch,
    SubscriptionNotFound,
    SubscriptionTaken,
    TopicDiffers,
    TopicExists,
    TopicNotFound,
    TryLater,
)
from frazil.core.names import TopicName
from frazil.core.settings import MIB
from frazil.serve.danube_ended import EndedConsumers, Subscriber
from frazil.serve.danube_messages import epoch_of, outgoing, subscription_field, wire
from frazil.serve.danube_schemas import DanubeSchemas
from frazil.serve.request_ids import HEADER, begin, current
from frazil.serve.schema_checks import SchemaChecks

STOP_SECONDS_MAX = 5.0
ENVELOPE_BYTES = MIB
"""What a message may have around its payload before gRPC refuses it."""

_TOPIC = re.compile(r"/[A-Za-z0-9_-]+/[A-Za-z0-9_-]+", re.ASCII)
_KINDS = (Kind.EXCLUSIVE, Kind.SHARED, Kind.FAILOVER, Kind.KEY_SHARED)
_STATUSES: tuple[tuple[type[FrazilError], grpc.StatusCode], ...] = (
    (SubjectMismatch, grpc.StatusCode.FAILED_PRECONDITION),
    (IncompatibleSchema, grpc.StatusCode.FAILED_PRECONDITION),
    (SchemaNotFound, grpc.StatusCode.NOT_FOUND),
    (InvalidInput, grpc.StatusCode.INVALID_ARGUMENT),
    (TopicNotFound, grpc.StatusCode.NOT_FOUND),
    (SubscriptionNotFound, grpc.StatusCode.NOT_FOUND),
    (TopicExists, grpc.StatusCode.ALREADY_EXISTS),
    (TopicDiffers, grpc.StatusCode.FAILED_PRECONDITION),
    (SubscriptionTaken, grpc.StatusCode.PERMISSION_DENIED),
    (Overloaded, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (DiskFull, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (DiskBudgetExceeded, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (TryLater, grpc.StatusCode.UNAVAILABLE),
    (LogFailed, grpc.StatusCode.UNAVAILABLE),
    (MetadataUnavailable, grpc.StatusCode.UNAVAILABLE),
    (Closed, grpc.StatusCode.UNAVAILABLE),
)

_log = logging.getLogger("frazil.serve")

Context = Any
"""gRPC's, which is generic only for type checkers that have its stubs."""
Answer = Callable[[Any], Awaitable[Any]]
Publish = Callable[[BrokerTopic, Outgoing], Awaitable[int]]
"""The topic's own, or one that traces it."""

_calling: ContextVar[Context] = ContextVar("calling")


class DanubeDoor:
    """Made and used on the broker's event loop."""

    def __init__(
        self,
        broker: Broker,
        schemas: DanubeSchemas,
        checks: SchemaChecks,
        settings: BrokerSettings,
        message_bytes_max: int,
        publish: Publish = BrokerTopic.publish,
    ) -> None:
        self._broker = broker
        self._schemas = schemas
        self._checks = checks
        self._settings = settings
        self._publish = publish
        self._server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", message_bytes_max + ENVELOPE_BYTES),
                ("grpc.max_send_message_length", -1),
                ("grpc.keepalive_time_ms", 20_000),
                ("grpc.keepalive_timeout_ms", 10_000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
            ]
        )
        self._health = health.aio.HealthServicer()
        self._ended = EndedConsumers()
        self.url = ""

    async def start(self) -> None:
        host, port = self._settings.host, self._settings.port
        self._server.add_generic_rpc_handlers(self._services())
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        files = (pb.DESCRIPTOR, SchemaRegistry_pb2.DESCRIPTOR)
        names = [service.full_name for file in files for service in file.services_by_name.values()]
        reflection.enable_server_reflection([*names, health.SERVICE_NAME, reflection.SERVICE_NAME], self._server)
        shown = f"[{host}]" if ":" in host else host
        try:
            port = self._server.add_insecure_port(f"{shown}:{port}")
        except RuntimeError as error:
            raise ListenFailed(host, port, str(error).splitlines()[0]) from None
        self.url = f"http://{self._settings.advertised or f'{shown}:{port}'}"
        await self._server.start()
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)

    async def stop(self) -> None:
        """No new calls; those on their way are answered; streams end."""
        self._ended.stop()
        await self._health.enter_graceful_shutdown()
        await self._server.stop(STOP_SECONDS_MAX)

    # --- discovery

    async def _lookup(self, request: Any) -> Any:
        name = _topic(request.topic)
        if not self._broker.knows(name) and not self._broker.partitions(name):
            raise TopicNotFound(request.topic)
        return pb.TopicLookupResponse(
            request_id=request.request_id,
            response_type=pb.TopicLookupResponse.Connect,
            connect_url=self.url,
            broker_url=self.url,
            proxy=False,
        )

    async def _partitions(self, request: Any) -> Any:
        return pb.TopicPartitionsResponse(
            request_id=request.request_id, partitions=self._broker.partitions(_topic(request.topic))
        )

    # --- producers

    async def _create_producer(self, request: Any) -> Any:
        _topic(request.topic_name)
        reliable = request.dispatch_strategy == pb.Reliable
        if request.HasField("schema_ref"):
            await self._schemas.bind(request.topic_name, request.schema_ref)
        producer = await self._broker.create_producer(request.topic_name, request.producer_name, reliable=reliable)
        return pb.ProducerResponse(request_id=request.request_id, producer_id=producer.id, producer_name=producer.name)

    async def _send(self, request: Any) -> Any:
        producer = self._broker.producer(request.msg_id.producer_id)
        message = outgoing(request, producer.name)
        origin = message.origin
        await self._checks.check(producer.topic.label, (message.payload, origin.schema_id, origin.schema_version))
        await self._publish(producer.topic, message)
        self._broker.counts.sent(len(message.payload))
        return pb.MessageResponse(request_id=request.request_id)

    # --- consumers

    async def _subscribe(self, request: Any) -> Any:
        _topic(request.topic_name)
        if request.subscription_type >= len(_KINDS):
            raise InvalidInput("subscription_type: must be 0 to 3", field="subscription_type")
        kind = _KINDS[request.subscription_type]
        who = Subscriber(_calling.get().peer(), request.topic_name, request.subscription, request.consumer_name)
        if self._ended.is_its_own_doing(who):
            raise SubscriptionNotFound.deleted(request.topic_name, request.subscription)
        number = await self._broker.subscribe(
            request.topic_name, request.subscription, kind, request.consumer_name, list(request.key_filters)
        )
        return pb.ConsumerResponse(
            request_id=request.request_id, consumer_id=number, consumer_name=request.consumer_name
        )

    async def _receive(self, request: Any, context: Context) -> AsyncIterator[bytes]:
        begin(context.invocation_metadata())
        try:
            if isinstance(request, InvalidInput):
                raise request
            if request.consumer_id in self._ended:
                await self._ended.hold()
            topic, subscription, consumer, stream = self._broker.connect(request.consumer_id)
        except FrazilError as error:
            await _refuse(context, error, self._broker.counts)
        name, url, epoch, field = str(topic.name), self.url, -1, b""
        try:
            await context.send_initial_metadata(())  # clients wait for it, and one in Rust does nothing else meanwhile
            while (entry := await stream.take()) is not None:
                if epoch != stream.epoch:
                    epoch = stream.epoch
                    field = subscription_field(subscription.name, epoch)
                yield wire(entry, name, url, field)
        finally:
            subscription.disconnect(consumer, stream)
        if self._broker.has_forgotten(consumer.id):
            self._ended.add(consumer.id, Subscriber(context.peer(), name, subscription.name, consumer.name))
            await _refuse(context, SubscriptionNotFound.deleted(name, subscription.name), self._broker.counts)

    async def _ack(self, request: Any) -> Any:
        found = self._broker.subscription(request.msg_id.topic_name, request.subscription_name)
        found.ack(request.msg_id.topic_offset, epoch_of(request.msg_id))
        return pb.AckResponse(request_id=request.request_id)

    async def _nack(self, request: Any) -> Any:
        found = self._broker.subscription(request.msg_id.topic_name, request.subscription_name)
        delay_us = request.delay_ms * 1_000 if request.HasField("delay_ms") else None
        reason = request.reason[:1_000] or "refused by its consumer"
        found.nack(request.msg_id.topic_offset, delay_us, reason, epoch_of(request.msg_id))
        return pb.NackResponse(request_id=request.request_id)

    # --- health

    async def _check(self, request: Any) -> Any:
        """CLOSE and not an error, for an error ends a client's polling for good."""
        is_producer = request.client == pb.HealthCheckRequest.Producer
        known = self._broker.has_producer(request.id) if is_producer else self._broker.has_consumer(request.id)
        if not known and not is_producer:
            self._ended.tell_closed(request.id)
        status = pb.HealthCheckResponse.OK if known else pb.HealthCheckResponse.CLOSE
        return pb.HealthCheckResponse(status=status)

    # --- how gRPC finds them

    def _services(self) -> tuple[Any, ...]:
        """By hand, so that a stream's messages go out as the bytes that they are already."""
        calls: dict[str, dict[str, tuple[Answer, Any]]] = {
            "danube_schema.SchemaRegistry": self._schemas.calls(),
            "danube.Discovery": {
                "TopicLookup": (self._lookup, pb.TopicLookupRequest),
                "TopicPartitions": (self._partitions, pb.TopicLookupRequest),
            },
            "danube.ProducerService": {
                "CreateProducer": (self._create_producer, pb.ProducerRequest),
                "SendMessage": (self._send, pb.StreamMessage),
            },
            "danube.ConsumerService": {
                "Subscribe": (self._subscribe, pb.ConsumerRequest),
                "Ack": (self._ack, pb.AckRequest),
                "Nack": (self._nack, pb.NackRequest),
            },
            "danube.HealthCheck": {"HealthCheck": (self._check, pb.HealthCheckRequest)},
        }
        handlers: dict[str, dict[str, Any]] = {
            service: {name: _unary(answer, request, self._broker.counts) for name, (answer, request) in methods.items()}
            for service, methods in calls.items()
        }
        handlers["danube.ConsumerService"]["ReceiveMessages"] = grpc.unary_stream_rpc_method_handler(
            self._receive, request_deserializer=_reader(pb.ReceiveRequest)
        )
        return tuple(grpc.method_handlers_generic_handler(service, methods) for service, methods in handlers.items())


def _unary(answer: Answer, request: Any, counts: BrokerCounts) -> Any:
    async def call(message: Any, context: Context) -> Any:
        asked = begin(context.invocation_metadata())
        _calling.set(context)
        if asked.is_given:
            context.set_trailing_metadata(((HEADER, asked.id),))
        try:
            if isinstance(message, InvalidInput):
                raise message
            return await answer(message)
        except FrazilError as error:
            await _refuse(context, error, counts)
        except Exception:  # noqa: BLE001 - whatever it was is for our log, not for a client
            _log.exception("a call failed")
            await _refuse(context, FrazilError("an error of Frazil's own; its log says more"), counts, logged=True)

    return grpc.unary_unary_rpc_method_handler(
        call, request_deserializer=_reader(request), response_serializer=lambda made: made.SerializeToString()
    )


def _reader(kind: Any) -> Callable[[bytes], Any]:
    """What can't be read is a bad call and no failure of the server, as gRPC would take it for."""

    def read(data: bytes) -> Any:
        try:
            return kind.FromString(data)
        except DecodeError:
            return InvalidInput(f"the request is no {kind.DESCRIPTOR.name}", field="request")

    return read


async def _refuse(context: Context, error: FrazilError, counts: BrokerCounts, *, logged: bool = False) -> NoReturn:
    counts.refused[error.code] += 1
    code = next((code for kind, code in _STATUSES if isinstance(error, kind)), grpc.StatusCode.INTERNAL)
    if code is grpc.StatusCode.INTERNAL and not logged:
        _log.error("%s", error)
    asked = current()
    await context.abort(code, error.message, () if asked is None else ((HEADER, asked.id),))
    raise asyncio.CancelledError  # abort never returns


def _topic(name: str) -> TopicName:
    if not _TOPIC.fullmatch(name):
        raise InvalidInput(f"topic: must be /namespace/topic of A-Z a-z 0-9 _ -, not {name!r:.80}", field="topic")
    return TopicName.parse(name)
