"""TopicAdmin: topics and subscriptions, listed, described, made and deleted."""

from __future__ import annotations

import asyncio
from typing import Any

from frazil.broker.admin import BrokerAdmin
from frazil.core.errors import InvalidInput, SchemaNotFound, TopicDiffers, TopicNotFound
from frazil.core.names import TopicName, check_namespace
from frazil.core.partitions import topic_or_partitions
from frazil.log.storage import Storage
from frazil.serve import danube_admin_pb2 as pb
from frazil.serve.admin.parts import BrokerParts
from frazil.serve.grpc_calls import Answer

BROKER_ID = 1
"""Of the only broker that there is."""


class TopicCalls:
    def __init__(self, storage: Storage, parts: BrokerParts) -> None:
        self._storage = storage
        self._broker = parts.broker
        self._registry = parts.registry
        self._schemas = parts.topics
        self._admin = BrokerAdmin(parts.broker)

    def calls(self) -> dict[str, Answer]:
        return {
            "ListNamespaceTopics": self._list_of_namespace,
            "ListBrokerTopics": self._list_of_broker,
            "CreateTopic": self._create,
            "CreatePartitionedTopic": self._create_partitioned,
            "DeleteTopic": self._delete,
            "UnloadTopic": self._unload,
            "ListSubscriptions": self._list_subscriptions,
            "Unsubscribe": self._unsubscribe,
            "DescribeTopic": self._describe,
        }

    async def names(self, namespace: str | None = None) -> list[TopicName]:
        """All topics and partitions, or those of a namespace, in their order."""
        if namespace is not None:
            check_namespace(namespace)
        there = await asyncio.to_thread(self._storage.names) | self._broker.topics.keys()
        return sorted(one for one in there if namespace in (None, one.namespace))

    async def _list_of_namespace(self, request: Any) -> Any:
        return self._infos(await self.names(request.name))

    async def _list_of_broker(self, request: Any) -> Any:
        if request.broker_id != str(BROKER_ID):
            raise InvalidInput(f"broker_id: the only broker is {BROKER_ID}", field="broker_id")
        return self._infos(await self.names())

    async def _create(self, request: Any) -> Any:
        return await self._make(TopicName.parse(request.name), 0, request)

    async def _create_partitioned(self, request: Any) -> Any:
        if request.partitions == 0:
            raise InvalidInput("partitions: must be at least 1", field="partitions")
        return await self._make(TopicName.parse(request.base_name), request.partitions, request)

    async def _make(self, base: TopicName, partitions: int, request: Any) -> Any:
        """With its subject, or not at all."""
        if request.dispatch_strategy not in (pb.NonReliable, pb.Reliable):
            raise InvalidInput("dispatch_strategy: must be 0 or 1", field="dispatch_strategy")
        binding: dict[str, bytes] = {}
        if request.HasField("schema_subject"):
            binding = await asyncio.to_thread(self._schemas.binding, str(base), request.schema_subject)
        reliable = request.dispatch_strategy == pb.Reliable
        await self._broker.create_topics(base, partitions, reliable=reliable, retention=None, also=binding)
        self._schemas.changed()
        return pb.TopicResponse(success=True)

    async def _delete(self, request: Any) -> Any:
        """As Danube does it: with its producers and subscriptions."""
        await self._broker.delete_topic(TopicName.parse(request.name), force=True)
        return pb.TopicResponse(success=True)

    async def _unload(self, request: Any) -> Any:
        await self._there(TopicName.parse(request.name))
        raise TopicDiffers(request.name, "it can't be unloaded: this is the only broker, and no other could take it")

    async def _list_subscriptions(self, request: Any) -> Any:
        names = await self._there(TopicName.parse(request.name))
        return pb.SubscriptionListResponse(subscriptions=self._subscriptions(names))

    async def _unsubscribe(self, request: Any) -> Any:
        await self._admin.delete_subscription(TopicName.parse(request.topic), request.subscription)
        return pb.SubscriptionResponse(success=True)

    async def _describe(self, request: Any) -> Any:
        name = TopicName.parse(request.name)
        names = await self._there(name)
        answer = pb.DescribeTopicResponse(
            name=str(name),
            subscriptions=self._subscriptions(names),
            broker_id=str(BROKER_ID),
            delivery=self._delivery(names[0]),
        )
        await asyncio.to_thread(self._add_schema, name, answer)
        return answer

    def _add_schema(self, name: TopicName, answer: Any) -> None:
        subject = self._schemas.get(str(name)).subject
        if subject is None:
            return
        answer.schema_subject = subject
        try:
            latest = self._registry.latest(subject)
        except SchemaNotFound:
            return  # all its versions were deleted
        answer.schema_id = latest.info.schema_id
        answer.schema_version = latest.info.version
        answer.schema_type = str(latest.definition.type)
        answer.compatibility_mode = str(latest.compatibility_mode)

    async def _there(self, name: TopicName) -> list[TopicName]:
        """The topic, or its partitions; `TopicNotFound` if there is neither."""
        there = await asyncio.to_thread(self._storage.family, name) | self._broker.topics.family(name)
        found = [one for one in topic_or_partitions(name, there) if one in there]
        if not found:
            raise TopicNotFound(str(name))
        return found

    def _subscriptions(self, names: list[TopicName]) -> list[str]:
        """A topic that the broker never used has none."""
        known = [self._admin.topic(one).subscriptions for one in names if self._broker.knows(one)]
        return sorted({one for each in known for one in each})

    def _infos(self, names: list[TopicName]) -> Any:
        infos = [pb.TopicInfo(name=str(one), broker_id=str(BROKER_ID), delivery=self._delivery(one)) for one in names]
        return pb.TopicInfoListResponse(topics=infos)

    def _delivery(self, name: TopicName) -> str:
        known = self._broker.topics.get(name)
        return "NonReliable" if known is not None and not known.reliable else "Reliable"
