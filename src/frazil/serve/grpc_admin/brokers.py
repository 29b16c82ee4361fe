"""BrokerAdmin, ClusterAdmin and NamespaceAdmin, with what is true of one broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from frazil.core.settings import Settings
from frazil.serve import danube_admin_pb2 as pb
from frazil.serve.admin.parts import BrokerParts
from frazil.serve.grpc_admin.topics import BROKER_ID, TopicCalls
from frazil.serve.grpc_calls import Answer

_UNLIMITED = (
    "max_producers_per_topic",
    "max_subscriptions_per_topic",
    "max_consumers_per_topic",
    "max_consumers_per_subscription",
    "max_publish_rate",
    "max_dispatch_rate",
    "max_subscription_dispatch_rate",
)
"""Policies of Danube's that Frazil has no limit for: 0, as Danube writes it."""


class BrokerCalls:
    def __init__(
        self,
        parts: BrokerParts,
        topics: TopicCalls,
        settings: Settings,
        addresses: Mapping[str, str],
        own_address: Callable[[], str],
    ) -> None:
        self._broker = parts.broker
        self._namespaces = parts.namespaces
        self._topics = topics
        self._settings = settings
        self._addresses = addresses
        self._own_address = own_address

    def calls(self) -> dict[str, Answer]:
        return {
            "ListBrokers": self._list_brokers,
            "GetLeaderBroker": self._leader,
            "ListNamespaces": self._list_namespaces,
            "GetClusterBalance": self._balance,
            "ClusterStatus": self._status,
            "GetNamespaceTopics": self._namespace_topics,
            "GetNamespacePolicies": self._namespace_policies,
            "CreateNamespace": self._create_namespace,
            "DeleteNamespace": self._delete_namespace,
        }

    async def _list_brokers(self, _: Any) -> Any:
        mine = pb.BrokerInfo(
            broker_id=str(BROKER_ID),
            broker_addr=self._broker.address,
            broker_role="Cluster_Leader",
            admin_addr=self._own_address(),
            metrics_addr=urlsplit(self._addresses.get("http", "")).netloc,
            broker_status="active",
        )
        return pb.BrokerListResponse(brokers=[mine])

    async def _leader(self, _: Any) -> Any:
        return pb.BrokerResponse(leader=str(BROKER_ID))

    async def _balance(self, _: Any) -> Any:
        """The load of a broker is the number of its topics."""
        count = len(await self._topics.names())
        mine = pb.BrokerLoadInfo(broker_id=BROKER_ID, load=count, topic_count=count)
        return pb.ClusterBalanceResponse(
            mean_load=count,
            max_load=count,
            min_load=count,
            broker_count=1,
            brokers=[mine],
            assignment_strategy="single broker",
        )

    async def _status(self, _: Any) -> Any:
        """A cluster of one. There is no Raft, so there are no terms, no log of it and no address."""
        return pb.ClusterStatusResponse(leader_id=BROKER_ID, voters=[BROKER_ID], self_node_id=BROKER_ID)

    async def _list_namespaces(self, _: Any) -> Any:
        return pb.NamespaceListResponse(namespaces=await asyncio.to_thread(self._namespaces.names))

    async def _namespace_topics(self, request: Any) -> Any:
        found = await self._topics.names(request.name)
        return pb.TopicListResponse(topics=[str(name) for name in found])

    async def _namespace_policies(self, request: Any) -> Any:
        await asyncio.to_thread(self._namespaces.check_there, request.name)
        policies = dict.fromkeys(_UNLIMITED, 0) | {"max_message_size": self._settings.wal.message_bytes_max}
        return pb.PolicyResponse(policies=json.dumps(policies))

    async def _create_namespace(self, request: Any) -> Any:
        await asyncio.to_thread(self._namespaces.create, request.name)
        return pb.NamespaceResponse(success=True)

    async def _delete_namespace(self, request: Any) -> Any:
        await asyncio.to_thread(self._namespaces.delete, request.name)
        return pb.NamespaceResponse(success=True)
