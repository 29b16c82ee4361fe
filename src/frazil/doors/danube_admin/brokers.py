"""BrokerAdmin, ClusterAdmin and NamespaceAdmin."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from frazil.core import access
from frazil.core.access import Action
from frazil.core.cluster import Balance, BrokerState, http_address
from frazil.core.errors import InvalidInput, TryLater
from frazil.core.principal import ANONYMOUS
from frazil.doors.admission import IDENTIFIED, who
from frazil.doors.danube_admin import danube_admin_pb2 as pb
from frazil.doors.danube_admin.admin_call import AdminCall
from frazil.doors.danube_admin.numbers import broker_named, number_of, number_of_id
from frazil.doors.danube_admin.topics import TopicCalls
from frazil.doors.danube_admin.unloading import unloaded
from frazil.doors.owning import Owning
from frazil.doors.rights import on_namespace, on_server
from frazil.node.node import Node

_log = logging.getLogger("frazil.serve")

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
        self._owning = Owning(node)
        self._broker = node.broker(ANONYMOUS)
        self._namespaces = node.namespaces(ANONYMOUS)
        self._topics = topics
        self._settings = node.settings
        self._addresses = node.addresses
        self._own_address = own_address

    def calls(self) -> dict[str, AdminCall]:
        describe, operate, on = on_server(Action.DESCRIBE), on_server(Action.OPERATE), on_namespace
        return {
            "ListBrokers": AdminCall(self._list_brokers, describe),
            "GetLeaderBroker": AdminCall(self._leader, describe),
            "UnloadBroker": AdminCall(self._unload, operate),
            "ActivateBroker": AdminCall(self._activate, operate),
            "TriggerRebalance": AdminCall(self._rebalance, operate),
            "ListNamespaces": AdminCall(self._list_namespaces, IDENTIFIED),
            "GetClusterBalance": AdminCall(self._balance, describe),
            "ClusterStatus": AdminCall(self._status, describe),
            "GetNamespaceTopics": AdminCall(self._namespace_topics, IDENTIFIED),
            "GetNamespacePolicies": AdminCall(self._namespace_policies, on("name", Action.DESCRIBE)),
            "CreateNamespace": AdminCall(self._create_namespace, on("name", Action.CREATE)),
            "DeleteNamespace": AdminCall(self._delete_namespace, on("name", Action.DELETE)),
        }

    async def _list_brokers(self, _: Any) -> Any:
        leader = self._owning.ownership.leader()
        found = []
        for one in self._owning.ownership.brokers():
            addresses = one.addresses if self._owning.is_clustered else self._own_addresses()
            found.append(
                pb.BrokerInfo(
                    broker_id=str(number_of(self._owning, one)),
                    broker_addr=addresses.get("danube", ""),
                    broker_role="Cluster_Leader" if one.broker_id == leader else "Cluster_Follower",
                    admin_addr=addresses.get("admin", ""),
                    metrics_addr=urlsplit(http_address(addresses) or "").netloc,
                    broker_status=one.state,
                )
            )
        return pb.BrokerListResponse(brokers=found)

    def _own_addresses(self) -> dict[str, str]:
        return {**self._addresses, "danube": self._broker.address, "admin": self._own_address()}

    async def _leader(self, _: Any) -> Any:
        number = number_of_id(self._owning, self._owning.ownership.leader())
        if not number:
            raise TryLater("no broker leads now; try again")
        return pb.BrokerResponse(leader=str(number))

    async def _unload(self, request: Any) -> Any:
        broker = broker_named(self._owning, request.broker_id)
        answer = await unloaded(self._owning, broker, request)
        if answer.started:
            how = f"unloaded: {answer.succeeded} of {answer.total} topics moved"
            self._node.record_change(who(), Action.OPERATE, f"broker {broker.broker_id}", how)
        return answer

    async def _activate(self, request: Any) -> Any:
        broker = broker_named(self._owning, request.broker_id)
        await self._owning.ownership.activate(broker.broker_id)
        self._node.record_change(who(), Action.OPERATE, f"broker {broker.broker_id}", "activated")
        _log.info("%s is active again: %s", broker.broker_id, request.reason[:200] or "no reason given")
        return pb.ActivateBrokerResponse(success=True)

    async def _balance(self, _: Any) -> Any:
        """A server that is alone has as load its number of topics, also of those that the caller may not know of."""
        if self._owning.is_clustered:
            found, strategy = self._owning.ownership.balance(), "load"
        else:
            (alone,), count = self._owning.ownership.brokers(), await self._topics.count()
            found, strategy = Balance((replace(alone, topics=count, load=float(count)),)), "single broker"
        brokers = [
            pb.BrokerLoadInfo(
                broker_id=number_of(self._owning, one),
                load=one.load,
                topic_count=one.topics,
                is_overloaded=found.is_overloaded(one),
                is_underloaded=found.is_underloaded(one),
            )
            for one in found.brokers
        ]
        return pb.ClusterBalanceResponse(
            coefficient_of_variation=found.variation,
            mean_load=found.mean,
            max_load=found.max,
            min_load=found.min,
            std_deviation=found.deviation,
            broker_count=len(brokers),
            brokers=brokers,
            assignment_strategy=strategy,
        )

    async def _rebalance(self, request: Any) -> Any:
        """Plan moves, and make them unless it is a dry run. Those that were made before a failure stay made."""
        limit = request.max_moves if request.HasField("max_moves") else None
        if limit == 0:
            raise InvalidInput("max_moves: must be at least 1", field="max_moves")
        try:
            moves = await self._owning.ownership.rebalance(dry_run=request.dry_run, moves_max=limit)
        except TryLater as error:
            return pb.RebalanceResponse(success=False, error_message=error.message)
        proposed = [
            pb.ProposedMove(
                topic_name=str(one.topic),
                from_broker=number_of_id(self._owning, one.from_broker),
                to_broker=number_of_id(self._owning, one.to_broker),
                estimated_load=one.load,
                reason=one.reason,
            )
            for one in moves
        ]
        for one in () if request.dry_run else moves:
            self._node.record_change(who(), Action.OPERATE, f"topic {one.topic}", f"moved to {one.to_broker}")
        executed = 0 if request.dry_run else len(proposed)
        return pb.RebalanceResponse(success=True, moves_executed=executed, proposed_moves=proposed)

    async def _status(self, _: Any) -> Any:
        """Describe the cluster. There is no Raft, so there are no terms, no log and no address."""
        ownership = self._owning.ownership
        there = [one for one in ownership.brokers() if one.state is not BrokerState.GONE]
        return pb.ClusterStatusResponse(
            leader_id=number_of_id(self._owning, ownership.leader()),
            voters=[number_of(self._owning, one) for one in there],
            self_node_id=number_of_id(self._owning, ownership.broker_id),
        )

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
        await asyncio.to_thread(self._node.namespaces(who()).create, request.name)
        return pb.NamespaceResponse(success=True)

    async def _delete_namespace(self, request: Any) -> Any:
        await asyncio.to_thread(self._node.namespaces(who()).delete, request.name)
        return pb.NamespaceResponse(success=True)
