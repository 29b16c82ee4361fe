"""BrokerAdmin, ClusterAdmin and NamespaceAdmin, for a single broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from frazil.core import access
from frazil.core.access import Action
from frazil.core.principal import ANONYMOUS
from frazil.doors.admission import IDENTIFIED, who
from frazil.doors.danube_admin import danube_admin_pb2 as pb
from frazil.doors.danube_admin.admin_call import AdminCall
from frazil.doors.danube_admin.topics import BROKER_ID, TopicCalls
from frazil.doors.rights import on_namespace, on_server
from frazil.node.node import Node

_UNLIMITED = (
    "max_producers_per_topic",
    "max_subscriptions_per_topic",
    "max_consumers_per_topic",
    "max_consumers_per_subscription",
    "max_publish_rate",
    "max_dispatch_rate",
    "max_subscription_dispatch_rate",
)
"""Danube's policies without a limit in Frazil: 0, as in Danube."""


class BrokerCalls:
    def __init__(self, node: Node, topics: TopicCalls, own_address: Callable[[], str]) -> None:
        self._node = node
        self._broker = node.broker(ANONYMOUS)
        self._namespaces = node.namespaces(ANONYMOUS)
        self._topics = topics
        self._settings = node.settings
        self._addresses = node.addresses
        self._own_address = own_address

    def calls(self) -> dict[str, AdminCall]:
        describe, on = on_server(Action.DESCRIBE), on_namespace
        return {
            "ListBrokers": AdminCall(self._list_brokers, describe),
            "GetLeaderBroker": AdminCall(self._leader, describe),
            "ListNamespaces": AdminCall(self._list_namespaces, IDENTIFIED),
            "GetClusterBalance": AdminCall(self._balance, describe),
            "ClusterStatus": AdminCall(self._status, describe),
            "GetNamespaceTopics": AdminCall(self._namespace_topics, IDENTIFIED),
            "GetNamespacePolicies": AdminCall(self._namespace_policies, on("name", Action.DESCRIBE)),
            "CreateNamespace": AdminCall(self._create_namespace, on("name", Action.CREATE)),
            "DeleteNamespace": AdminCall(self._delete_namespace, on("name", Action.DELETE)),
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
        """The load of a broker is its number of topics, also of those that the caller may not know of."""
        count = await self._topics.count()
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
        """Describe a cluster of one. There is no Raft, so there are no terms, no log and no address."""
        return pb.ClusterStatusResponse(leader_id=BROKER_ID, voters=[BROKER_ID], self_node_id=BROKER_ID)

    async def _list_namespaces(self, _: Any) -> Any:
        """Return the namespaces that the caller may know of."""
        names, gate, caller = await asyncio.to_thread(self._namespaces.names), self._node.gate, who()
        if gate.is_on:
            names = [name for name in names if gate.allows(caller, Action.DESCRIBE, access.namespace(name))]
        return pb.NamespaceListResponse(namespaces=names)

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
