"""TopicAdmin: list, describe, create and delete topics and subscriptions."""

from __future__ import annotations

import asyncio
from typing import Any

from frazil.core import access
from frazil.core.access import Action, Right
from frazil.core.errors import InvalidInput, SchemaNotFound, SubjectMismatch, TopicDiffers, TopicNotFound
from frazil.core.names import TopicName, check_namespace
from frazil.core.partitions import topic_or_partitions
from frazil.core.principal import ANONYMOUS, Principal
from frazil.doors.admission import IDENTIFIED, Rights, who
from frazil.doors.danube_admin import danube_admin_pb2 as pb
from frazil.doors.danube_admin.admin_call import AdminCall
from frazil.doors.danube_admin.numbers import broker_named, number_of
from frazil.doors.owning import Owning
from frazil.doors.rights import on_subscription, on_topic
from frazil.node.node import Node


class TopicCalls:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._owning = Owning(node)
        self._topics = node.topics(ANONYMOUS)
        self._broker = node.broker(ANONYMOUS)
        self._registry = node.registry(ANONYMOUS)
        self._schemas = node.schemas(ANONYMOUS)
        self._admin = node.admin(ANONYMOUS)

    def calls(self) -> dict[str, AdminCall]:
        describe = on_topic("name", Action.DESCRIBE)
        unsubscribe = on_subscription("topic", "subscription", Action.DELETE)
        return {
            "ListNamespaceTopics": AdminCall(self._list_of_namespace, IDENTIFIED),
            "ListBrokerTopics": AdminCall(self._list_of_broker, IDENTIFIED),
            "CreateTopic": AdminCall(self._create, _create_rights("name")),
            "CreatePartitionedTopic": AdminCall(self._create_partitioned, _create_rights("base_name")),
            "DeleteTopic": AdminCall(self._delete, on_topic("name", Action.DELETE), "name"),
            "UnloadTopic": AdminCall(self._unload, _unload_rights),
            "ListSubscriptions": AdminCall(self._list_subscriptions, describe, "name"),
            "Unsubscribe": AdminCall(self._unsubscribe, unsubscribe, "topic"),
            "DescribeTopic": AdminCall(self._describe, describe, "name"),
        }

    async def count(self) -> int:
        return len(await self._topics.run(self._topics.names))

    async def names(self, namespace: str | None = None) -> list[TopicName]:
        """Return all topics and partitions that the caller may know of, or those of a namespace, in order."""
        if namespace is not None:
            check_namespace(namespace)
        caller, gate = who(), self._node.gate
        there = await self._topics.run(self._topics.names)
        if self._owning.is_clustered:
            there = sorted({*there, *self._owning.ownership.topics()})
        found = [one for one in there if namespace in (None, one.namespace)]
        if not gate.is_on:
            return found
        return [one for one in found if gate.allows(caller, Action.DESCRIBE, access.topic(str(one)))]

    async def _list_of_namespace(self, request: Any) -> Any:
        return self._infos(await self.names(request.name))

    async def _list_of_broker(self, request: Any) -> Any:
        broker = broker_named(self._owning, request.broker_id)
        known = await self.names()
        return self._infos([name for name in known if self._owner(name) == number_of(self._owning, broker)])

    async def _create(self, request: Any) -> Any:
        return await self._make(TopicName.parse(request.name), 0, request)

    async def _create_partitioned(self, request: Any) -> Any:
        if request.partitions == 0:
            raise InvalidInput("partitions: must be at least 1", field="partitions")
        return await self._make(TopicName.parse(request.base_name), request.partitions, request)

    async def _make(self, base: TopicName, partitions: int, request: Any) -> Any:
        """Create a topic with its subject: both or neither."""
        if request.dispatch_strategy not in (pb.NonReliable, pb.Reliable):
            raise InvalidInput("dispatch_strategy: must be 0 or 1", field="dispatch_strategy")
        binding: dict[str, bytes] = {}
        if request.HasField("schema_subject"):
            binding = await self._binding(base, request.schema_subject)
        reliable = request.dispatch_strategy == pb.Reliable
        await self._node.create_topic(who(), base, partitions=partitions or None, reliable=reliable, also=binding)
        self._schemas.changed()
        return pb.TopicResponse(success=True)

    async def _binding(self, base: TopicName, subject: str) -> dict[str, bytes]:
        try:
            return await asyncio.to_thread(self._schemas.binding, str(base), subject)
        except SubjectMismatch as error:  # of a topic that exists
            raise await self._topics.run(self._topics.instead_of, error, who(), base) from None

    async def _delete(self, request: Any) -> Any:
        """Delete a topic with its producers and subscriptions, as Danube does."""
        await self._node.delete_topic(who(), TopicName.parse(request.name), force=True)
        return pb.TopicResponse(success=True)

    async def _unload(self, request: Any) -> Any:
        """Move a topic, or all its partitions, to the least loaded other broker. It goes on there."""
        name = TopicName.parse(request.name)
        if not self._owning.is_clustered:
            await self._there(name)
            raise TopicDiffers(
                request.name, "it can't be unloaded: this is the only broker, and no other could take it"
            )
        there = self._owning.ownership.family(name)
        names = [one for one in self._owning.of_call(name) if one in there]
        if not names:
            raise TopicNotFound(request.name)
        for one in names:
            await self._owning.ownership.move(one)
            self._node.record_change(who(), Action.OPERATE, f"topic {one}", self._owning.moved(one))
        return pb.TopicResponse(success=True)

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
            broker_id=str(self._owner(names[0]) or ""),
            delivery=self._delivery(names[0]),
        )
        await asyncio.to_thread(self._add_schema, who(), name, answer)
        return answer

    def _add_schema(self, caller: Principal, name: TopicName, answer: Any) -> None:
        subject = self._schemas.get(str(name)).subject
        if subject is None or not self._node.gate.allows(caller, Action.DESCRIBE, access.schema(subject)):
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
        """Return the topic, or its partitions; raises `TopicNotFound` if there are none."""
        there = await self._topics.run(self._topics.family, name)
        found = [one for one in topic_or_partitions(name, there) if one in there]
        if not found:
            raise TopicNotFound(str(name))
        return found

    def _subscriptions(self, names: list[TopicName]) -> list[str]:
        """Return the subscriptions that the caller may know of; a topic that the broker never used has none."""
        known = [self._admin.topic(one).subscriptions for one in names if self._broker.knows(one)]
        found = {one for each in known for one in each}
        caller, gate, topic = who(), self._node.gate, str(names[0])
        return sorted(one for one in found if gate.allows(caller, Action.DESCRIBE, access.subscription(topic, one)))

    def _infos(self, names: list[TopicName]) -> Any:
        infos = [
            pb.TopicInfo(name=str(one), broker_id=str(self._owner(one) or ""), delivery=self._delivery(one))
            for one in names
        ]
        return pb.TopicInfoListResponse(topics=infos)

    def _owner(self, name: TopicName) -> int:
        """Return the number of the broker that serves a topic; 0 while there is none."""
        found = self._owning.ownership.owner_of(name)
        return 0 if found is None else number_of(self._owning, found)

    def _delivery(self, name: TopicName) -> str:
        known = self._broker.topics.get(name)
        return "NonReliable" if known is not None and not known.reliable else "Reliable"


def _unload_rights(request: Any) -> list[Right]:
    """Where a topic is served concerns all brokers: to move it needs the same over HTTP."""
    return [Right(Action.OPERATE, access.SERVER), Right(Action.DESCRIBE, access.topic(request.name))]


def _create_rights(field: str) -> Rights:
    """To create a topic with a subject needs to know of the subject."""

    def rights(request: Any) -> list[Right]:
        found = [Right(Action.CREATE, access.topic(getattr(request, field)))]
        if request.HasField("schema_subject"):
            found.append(Right(Action.DESCRIBE, access.schema(request.schema_subject)))
        return found

    return rights
