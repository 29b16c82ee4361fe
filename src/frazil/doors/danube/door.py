"""The gRPC server for Danube clients. It translates calls to the broker, and decides nothing itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from frazil.core.access import Action, Right
from frazil.core.access import topic as topic_resource
from frazil.core.errors import (
    InvalidInput,
    NotOwner,
    SubscriptionNotFound,
    TopicNotFound,
    TopicUnavailable,
    UnknownClient,
)
from frazil.core.names import TopicName
from frazil.core.partitions import topic_or_partitions
from frazil.core.principal import ANONYMOUS, Principal
from frazil.core.settings import MIB
from frazil.doors import calls
from frazil.doors.admission import BY_HANDLER, PUBLIC, StreamRights, who
from frazil.doors.calls import UNLIMITED, CallLimit, Context, Method, Rules, Service, Streams, calling, send_headers
from frazil.doors.danube.auth import authentication
from frazil.doors.danube.ended import EndedConsumers, Subscriber
from frazil.doors.danube.messages import incarnation_of, outgoing, subscription_field, wire
from frazil.doors.danube.proto import DanubeApi_pb2 as pb
from frazil.doors.danube.proto import DanubeAuth_pb2, SchemaRegistry_pb2
from frazil.doors.danube.schemas import DanubeSchemas
from frazil.doors.described_server import DescribedServer
from frazil.doors.descriptors import connections_max
from frazil.doors.listen import for_others
from frazil.doors.owning import Owning
from frazil.doors.rights import of_subscription, on_subscription, on_topic
from frazil.doors.tls import protect
from frazil.node.node import Node
from frazil.node.types.broker import Kind, LiveSubscription, Stream, Subscription

ENVELOPE_BYTES = MIB
"""Size limit of a message without its payload."""

ELSEWHERE_SECONDS = 0.5
"""How long the stream of a topic that has moved is held before it is refused: some clients reopen it at once, until
their next health check reports their consumer as closed."""

_TOPIC = re.compile(r"/[A-Za-z0-9_-]+/[A-Za-z0-9_-]+", re.ASCII)
_KINDS = (Kind.EXCLUSIVE, Kind.SHARED, Kind.FAILOVER, Kind.KEY_SHARED)


class DanubeDoor:
    """Created and used on the broker's event loop."""

    def __init__(self, node: Node) -> None:
        """The broker of the Node must be open."""
        self._node = node
        self._settings = node.settings.broker
        self._broker = node.broker(ANONYMOUS)
        self._messages = node.messages(ANONYMOUS)
        self._schemas = DanubeSchemas(node)
        message_bytes_max = node.settings.wal.message_bytes_max
        self._server = DescribedServer(message_bytes_max + ENVELOPE_BYTES, connections_max())
        self._ended = EndedConsumers()
        self._owning = Owning(node)
        self.url = ""

    async def start(self) -> None:
        settings = self._settings
        tls = protect(self._node.settings, settings, settings.host, "broker.host")
        address = self._server.listen(settings.host, settings.port, "--broker-port or broker.port", tls)
        if self._owning.is_clustered:  # clients of other brokers are sent here
            address = for_others(settings.host, address)
        self.url = self._broker.address = f"{self._server.scheme}://{settings.advertised or address}"
        limit = CallLimit("broker.calls_max", settings.calls_max)
        rules = Rules(self._node.gate, limit, refused=self._broker.counts.refuse)
        services = [calls.service(name, methods, rules) for name, methods in self.tables()]
        described = (pb.DESCRIPTOR, DanubeAuth_pb2.DESCRIPTOR, SchemaRegistry_pb2.DESCRIPTOR)
        await self._server.start_described(services, described)

    async def stop(self) -> None:
        """Accept no new calls; calls in progress are answered; streams end."""
        self._ended.stop()
        await self._server.stop()

    # --- discovery

    async def _lookup(self, request: Any) -> Any:
        """Answer with the address of the broker that owns the topic: clients connect to it, and ask again after a
        failure. Any broker of the cluster answers."""
        name, kind, url = _topic(request.topic), pb.TopicLookupResponse.Connect, self.url
        try:
            self._owning.check(request.topic)
        except NotOwner as error:
            kind, url = pb.TopicLookupResponse.Redirect, danube_address(error)
        else:
            if not self._broker.partitions(name) and not await self._discover(name):
                raise TopicNotFound(request.topic)
        return pb.TopicLookupResponse(
            request_id=request.request_id, response_type=kind, connect_url=url, broker_url=url, proxy=False
        )

    async def _partitions(self, request: Any) -> Any:
        return pb.TopicPartitionsResponse(
            request_id=request.request_id, partitions=await self._discover(_topic(request.topic))
        )

    async def _discover(self, name: TopicName) -> list[str]:
        """Return the topic or its partitions, wherever they are."""
        here = await self._broker.discover(name)
        if not self._owning.is_clustered:
            return here
        there = {TopicName.parse(one) for one in here} | set(self._owning.ownership.family(name))
        return [str(one) for one in topic_or_partitions(name, there) if one in there]

    # --- producers

    async def _create_producer(self, request: Any) -> Any:
        name, topic = request.producer_name, _topic(request.topic_name)
        self._owning.check(request.topic_name)
        caller, reliable = who(), request.dispatch_strategy == pb.Reliable
        owner = self._node.owner(caller)
        is_new = owner is not None and not self._broker.knows(topic) and not await self._is_stored(topic)
        if is_new:
            resource = topic_resource(request.topic_name)
            self._node.gate.check(caller, Action.CREATE, resource, calling.get().peer())
        async with self._node.topics(caller).creating(caller, topic) if is_new else nullcontext():
            if request.HasField("schema_ref"):
                self._broker.check_producer(request.topic_name, name, reliable=reliable, owner=owner)
                await self._schemas.bind(caller, request.topic_name, request.schema_ref, is_new=is_new)
            producer = await self._broker.create_producer(
                request.topic_name, name, reliable=reliable, owner=owner, create=owner is None or is_new
            )
        await self._messages.learn(producer.topic)
        return pb.ProducerResponse(request_id=request.request_id, producer_id=producer.id, producer_name=producer.name)

    async def _is_stored(self, topic: TopicName) -> bool:
        topics = self._node.topics(ANONYMOUS)
        return topic in await topics.run(topics.family, topic)

    async def _send(self, request: Any) -> Any:
        gate, number, caller = self._node.gate, request.msg_id.producer_id, ANONYMOUS
        if gate.is_on:
            caller = who()
            producer = self._broker.producer(number, caller.name)
            gate.check(caller, Action.PRODUCE, topic_resource(producer.topic.label), calling.get().peer())
            gate.transfer(caller, request.ByteSize())  # attributes are stored too
        else:
            producer = self._broker.producer(number)
        self._owning.check(producer.topic.name)
        await self._messages.publish(producer.topic, outgoing(request, producer.name), caller)
        return pb.MessageResponse(request_id=request.request_id)

    # --- consumers

    async def _subscribe(self, request: Any) -> Any:
        _topic(request.topic_name)
        self._owning.check(request.topic_name)
        if not 0 <= request.subscription_type < len(_KINDS):
            raise InvalidInput("subscription_type: must be 0 to 3", field="subscription_type")
        kind = _KINDS[request.subscription_type]
        subscriber = Subscriber(calling.get().peer(), request.topic_name, request.subscription, request.consumer_name)
        if self._ended.is_its_own_doing(subscriber):
            raise SubscriptionNotFound.deleted(request.topic_name, request.subscription)
        filters = list(request.key_filters)
        number = await self._node.subscribe(
            who(), request.topic_name, request.subscription, kind, request.consumer_name, filters
        )
        return pb.ConsumerResponse(
            request_id=request.request_id, consumer_id=number, consumer_name=request.consumer_name
        )

    async def _receive(self, request: Any, context: Context) -> None:
        """Send messages until the client disconnects, the consumer's stream ends, or its rights are gone."""
        if request.consumer_id in self._ended:
            await self._ended.hold()
        try:
            rights = self._receive_rights(request.consumer_id, context)
            rights.admit()
        except (NotOwner, TopicUnavailable, UnknownClient):
            if self._owning.is_clustered:
                await self._ended.hold(ELSEWHERE_SECONDS)
            raise
        topic, subscription, consumer, stream = self._broker.connect(request.consumer_id)
        name = topic.label
        try:
            with rights.open(stream.end):
                await self._send_messages(name, subscription, stream, context, rights)
        finally:
            subscription.disconnect(consumer, stream)
        self._owning.check(topic.name)
        if self._broker.has_forgotten(consumer.id):
            self._ended.add(consumer.id, Subscriber(context.peer(), name, subscription.name, consumer.name))
            raise SubscriptionNotFound.deleted(name, subscription.name)

    def _receive_rights(self, number: int, context: Context) -> StreamRights:
        caller = who()
        place = self._broker.consumer(number, self._node.owner(caller))
        needed = of_subscription(place.topic.label, place.subscription.name, Action.CONSUME)
        return StreamRights(self._node.gate, caller, context.peer(), needed, self._owning.place(place.topic.name))

    async def _send_messages(
        self,
        topic: str,
        subscription: Subscription | LiveSubscription,
        stream: Stream,
        context: Context,
        rights: StreamRights,
    ) -> None:
        url, incarnation, field, is_checked = self.url, -1, b"", rights.is_checked
        await send_headers(context)  # clients wait for the headers; the Rust client does nothing until it gets them
        while (entry := await stream.take()) is not None:
            if incarnation != stream.incarnation:
                incarnation = stream.incarnation
                field = subscription_field(subscription.name, incarnation)
            try:
                message = wire(entry, topic, url, field)
            except (ValueError, TypeError, OverflowError) as error:
                reason = f"it cannot be sent to a Danube client: {error}"
                subscription.nack(entry.offset, None, reason, incarnation)
                continue
            if is_checked:
                await rights.give(len(message))
            await context.write(message)

    async def _ack(self, request: Any) -> Any:
        self._owning.check(request.msg_id.topic_name)
        found = self._broker.subscription(request.msg_id.topic_name, request.subscription_name)
        found.ack(request.msg_id.topic_offset, incarnation_of(request.msg_id))
        return pb.AckResponse(request_id=request.request_id)

    async def _nack(self, request: Any) -> Any:
        self._owning.check(request.msg_id.topic_name)
        found = self._broker.subscription(request.msg_id.topic_name, request.subscription_name)
        delay_us = request.delay_ms * 1_000 if request.HasField("delay_ms") else None
        reason = request.reason[:1_000] or "refused by its consumer"
        found.nack(request.msg_id.topic_offset, delay_us, reason, incarnation_of(request.msg_id))
        return pb.NackResponse(request_id=request.request_id)

    # --- health

    async def _check(self, request: Any) -> Any:
        """Return CLOSE instead of an error, which would end a client's polling permanently."""
        is_producer = request.client == pb.HealthCheckRequest.Producer
        caller, gate = who(), self._node.gate
        known = self._is_producer(request.id, caller) if is_producer else self._is_consumer(request.id, caller)
        if not known and not is_producer and (not gate.is_on or caller is not ANONYMOUS):
            self._ended.tell_closed(request.id)
        status = pb.HealthCheckResponse.OK if known else pb.HealthCheckResponse.CLOSE
        return pb.HealthCheckResponse(status=status)

    def _is_producer(self, number: int, caller: Principal) -> bool:
        """Whether it exists here and the caller may use it. False for those of other callers."""
        found, gate = self._broker.find_producer(number), self._node.gate
        if found is None or not self._owning.is_here(found.topic.name):
            return False
        if not gate.is_on:
            return True
        is_mine = found.owner in (None, caller.name)
        return is_mine and gate.allows(caller, Action.PRODUCE, topic_resource(found.topic.label))

    def _is_consumer(self, number: int, caller: Principal) -> bool:
        found, gate = self._broker.find_consumer(number), self._node.gate
        if found is None or not self._owning.is_here(found.topic.name):
            return False
        if not gate.is_on:
            return True
        if found.consumer.owner not in (None, caller.name):
            return False
        needed = of_subscription(found.topic.label, found.subscription.name, Action.CONSUME)
        return all(gate.allows(caller, action, resource) for action, resource in needed)

    # --- the tables of calls

    def tables(self) -> list[Service]:
        streams = CallLimit("broker.streams_max", self._settings.streams_max)
        describe, answer = on_topic("topic", Action.DESCRIBE), _answer_rights
        produce = on_topic("topic_name", Action.PRODUCE)
        consume = on_subscription("topic_name", "subscription", Action.CONSUME)
        discovery = [
            Method("TopicLookup", pb.TopicLookupRequest, self._lookup, describe, pb.TopicLookupResponse),
            Method("TopicPartitions", pb.TopicLookupRequest, self._partitions, describe, pb.TopicPartitionsResponse),
        ]
        producers = [
            Method("CreateProducer", pb.ProducerRequest, self._create_producer, produce, pb.ProducerResponse),
            Method("SendMessage", pb.StreamMessage, self._send, BY_HANDLER, pb.MessageResponse),
        ]
        receive = Method(
            "ReceiveMessages", pb.ReceiveRequest, self._receive, BY_HANDLER, streams=Streams.ANSWERS, limit=streams
        )
        consumers = [
            Method("Subscribe", pb.ConsumerRequest, self._subscribe, consume, pb.ConsumerResponse),
            receive,
            Method("Ack", pb.AckRequest, self._ack, answer, pb.AckResponse),
            Method("Nack", pb.NackRequest, self._nack, answer, pb.NackResponse),
        ]
        # Without a limit and public: an error would end a client's polling permanently.
        kind = pb.HealthCheckRequest
        health = [Method("HealthCheck", kind, self._check, PUBLIC, pb.HealthCheckResponse, limit=UNLIMITED)]
        return [
            Service("danube_schema.SchemaRegistry", self._schemas.methods()),
            Service("danube.Discovery", discovery),
            Service("danube.ProducerService", producers),
            Service("danube.ConsumerService", consumers),
            Service("danube.HealthCheck", health),
            authentication(self._node),
        ]


def _answer_rights(request: Any) -> Sequence[Right]:
    """The rights for an ack or a nack."""
    return of_subscription(request.msg_id.topic_name, request.subscription_name, Action.CONSUME)


def danube_address(error: NotOwner) -> str:
    """Return where Danube clients find the owner; raises `TopicUnavailable` if it does not serve them."""
    found = error.fields["addresses"].get("danube")
    if found is None:
        raise TopicUnavailable(error.fields["topic"], f"its owner {error.fields['broker_id']} serves no Danube clients")
    return str(found)


def _topic(name: str) -> TopicName:
    if not _TOPIC.fullmatch(name):
        raise InvalidInput(f"topic: must be /namespace/topic of A-Z a-z 0-9 _ -, not {name!r:.80}", field="topic")
    return TopicName.parse(name)
