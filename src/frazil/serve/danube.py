"""The door for Danube clients: their gRPC services over the broker, and nothing of its own."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from frazil.broker.broker import Broker
from frazil.broker.consumer import Consumer, Stream
from frazil.broker.delivery.assignment import Kind
from frazil.broker.live import LiveSubscription
from frazil.broker.subscription import Subscription
from frazil.broker.topic import BrokerTopic, Outgoing
from frazil.core.broker_settings import BrokerSettings
from frazil.core.errors import FrazilError, InvalidInput, SubscriptionNotFound, TopicNotFound
from frazil.core.names import TopicName
from frazil.core.settings import MIB
from frazil.serve.danube_ended import EndedConsumers, Subscriber
from frazil.serve.danube_messages import incarnation_of, outgoing, subscription_field, wire
from frazil.serve.danube_proto import DanubeApi_pb2 as pb
from frazil.serve.danube_proto import SchemaRegistry_pb2
from frazil.serve.danube_schemas import DanubeSchemas
from frazil.serve.descriptors import connections_max
from frazil.serve.grpc_calls import UNLIMITED, Answer, CallLimit, Context, GrpcServer, calling, reader, refuse, unary
from frazil.serve.request_ids import begin
from frazil.serve.schema_checks import SchemaChecks

ENVELOPE_BYTES = MIB
"""What a message may have around its payload before gRPC refuses it."""

_TOPIC = re.compile(r"/[A-Za-z0-9_-]+/[A-Za-z0-9_-]+", re.ASCII)
_KINDS = (Kind.EXCLUSIVE, Kind.SHARED, Kind.FAILOVER, Kind.KEY_SHARED)

Publish = Callable[[BrokerTopic, Outgoing], Awaitable[int]]
"""The topic's own, or one that traces it."""
Connected = tuple[BrokerTopic, Subscription | LiveSubscription, Consumer, Stream]


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
        self._calls = CallLimit("broker.calls_max", settings.calls_max)
        self._streams = CallLimit("broker.streams_max", settings.streams_max)
        self._server = GrpcServer(message_bytes_max + ENVELOPE_BYTES, connections_max())
        self._ended = EndedConsumers()
        self.url = ""

    async def start(self) -> None:
        settings = self._settings
        address = self._server.listen(settings.host, settings.port, "--broker-port or broker.port")
        self.url = f"http://{settings.advertised or address}"
        await self._server.start(self._services(), (pb.DESCRIPTOR, SchemaRegistry_pb2.DESCRIPTOR))

    async def stop(self) -> None:
        """No new calls; those on their way are answered; streams end."""
        self._ended.stop()
        await self._server.stop()

    # --- discovery

    async def _lookup(self, request: Any) -> Any:
        name = _topic(request.topic)
        if not self._broker.partitions(name) and not await self._broker.discover(name):
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
            request_id=request.request_id, partitions=await self._broker.discover(_topic(request.topic))
        )

    # --- producers

    async def _create_producer(self, request: Any) -> Any:
        _topic(request.topic_name)
        reliable = request.dispatch_strategy == pb.Reliable
        if request.HasField("schema_ref"):
            self._broker.check_producer(request.topic_name, request.producer_name, reliable=reliable)
            await self._schemas.bind(request.topic_name, request.schema_ref)
        producer = await self._broker.create_producer(request.topic_name, request.producer_name, reliable=reliable)
        await self._checks.learn(producer.topic.label)
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
        if not 0 <= request.subscription_type < len(_KINDS):
            raise InvalidInput("subscription_type: must be 0 to 3", field="subscription_type")
        kind = _KINDS[request.subscription_type]
        who = Subscriber(calling.get().peer(), request.topic_name, request.subscription, request.consumer_name)
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
            self._streams.enter()
        except FrazilError as error:
            await refuse(context, error, self._broker.counts)
        try:
            topic, subscription, consumer, stream = await self._connected(request.consumer_id, context)
            name, url, incarnation, field = str(topic.name), self.url, -1, b""
            try:
                await context.send_initial_metadata(())  # clients wait for it, and one in Rust does nothing meanwhile
                while (entry := await stream.take()) is not None:
                    if incarnation != stream.incarnation:
                        incarnation = stream.incarnation
                        field = subscription_field(subscription.name, incarnation)
                    try:
                        message = wire(entry, name, url, field)
                    except (ValueError, TypeError, OverflowError) as error:
                        reason = f"it can't be sent to a Danube client: {error}"
                        subscription.nack(entry.offset, None, reason, incarnation)
                        continue
                    yield message
            finally:
                subscription.disconnect(consumer, stream)
            if self._broker.has_forgotten(consumer.id):
                self._ended.add(consumer.id, Subscriber(context.peer(), name, subscription.name, consumer.name))
                await refuse(context, SubscriptionNotFound.deleted(name, subscription.name), self._broker.counts)
        finally:
            self._streams.leave()

    async def _connected(self, consumer_id: int, context: Context) -> Connected:
        try:
            if consumer_id in self._ended:
                await self._ended.hold()
            return self._broker.connect(consumer_id)
        except FrazilError as error:
            await refuse(context, error, self._broker.counts)

    async def _ack(self, request: Any) -> Any:
        found = self._broker.subscription(request.msg_id.topic_name, request.subscription_name)
        found.ack(request.msg_id.topic_offset, incarnation_of(request.msg_id))
        return pb.AckResponse(request_id=request.request_id)

    async def _nack(self, request: Any) -> Any:
        found = self._broker.subscription(request.msg_id.topic_name, request.subscription_name)
        delay_us = request.delay_ms * 1_000 if request.HasField("delay_ms") else None
        reason = request.reason[:1_000] or "refused by its consumer"
        found.nack(request.msg_id.topic_offset, delay_us, reason, incarnation_of(request.msg_id))
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
        }
        handlers: dict[str, dict[str, Any]] = {
            service: {name: self._unary(*call) for name, call in methods.items()} for service, methods in calls.items()
        }
        check = unary(self._check, pb.HealthCheckRequest, self._broker.counts, UNLIMITED)
        handlers["danube.HealthCheck"] = {"HealthCheck": check}  # an error would end a client's polling for good
        handlers["danube.ConsumerService"]["ReceiveMessages"] = grpc.unary_stream_rpc_method_handler(
            self._receive, request_deserializer=reader(pb.ReceiveRequest)
        )
        return tuple(grpc.method_handlers_generic_handler(service, methods) for service, methods in handlers.items())

    def _unary(self, answer: Answer, request: Any) -> Any:
        return unary(answer, request, self._broker.counts, self._calls)


def _topic(name: str) -> TopicName:
    if not _TOPIC.fullmatch(name):
        raise InvalidInput(f"topic: must be /namespace/topic of A-Z a-z 0-9 _ -, not {name!r:.80}", field="topic")
    return TopicName.parse(name)
