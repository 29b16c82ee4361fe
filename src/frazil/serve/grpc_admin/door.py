"""The gRPC server of the admin service: every call of the protocol is either answered or refused with the reason."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from frazil.core.broker_settings import BrokerSettings
from frazil.core.errors import ListenFailed, NotSupported
from frazil.core.settings import MIB
from frazil.log.storage import Storage
from frazil.serve import danube_admin_pb2 as pb
from frazil.serve.admin.parts import BrokerParts
from frazil.serve.descriptors import admin_connections_max
from frazil.serve.grpc_admin.brokers import BrokerCalls
from frazil.serve.grpc_admin.policies import PolicyCalls
from frazil.serve.grpc_admin.topics import TopicCalls
from frazil.serve.grpc_calls import Answer, CallLimit, GrpcServer, check_free, unary

SETTING = "--admin-port or broker.admin_port"
REQUEST_BYTES_MAX = MIB
ONE_BROKER = "a Frazil server is one broker: there is no other that its topics could move to"
NO_RAFT = "a Frazil server is a cluster of one, without Raft: there are no nodes to add, promote or remove"
NO_ROLES = "Frazil has no roles and bindings"
_REFUSED = {
    "danube_admin.BrokerAdmin": ONE_BROKER,
    "danube_admin.ClusterAdmin": NO_RAFT,
    "danube_admin.SecurityAdmin": NO_ROLES,
}

_log = logging.getLogger("frazil.serve")


class AdminDoor:
    """Made and used on the broker's event loop."""

    def __init__(
        self,
        storage: Storage,
        parts: BrokerParts,
        settings: BrokerSettings,
        addresses: Mapping[str, str],
    ) -> None:
        """`addresses` are those of the other doors, by their names."""
        self._settings = settings
        self._counts = parts.broker.counts
        self._limit = CallLimit("broker.calls_max", settings.calls_max)
        self._server = GrpcServer(REQUEST_BYTES_MAX, admin_connections_max())
        self.url = ""
        topics = TopicCalls(storage, parts)
        brokers = BrokerCalls(parts, topics, storage.settings, addresses, lambda: self.url)
        self._calls: dict[str, Answer] = {**brokers.calls(), **topics.calls(), **PolicyCalls(parts.broker).calls()}

    async def start(self) -> None:
        self.url = f"http://{self._listen()}"
        await self._server.start(self._handlers(), (pb.DESCRIPTOR,))

    async def stop(self) -> None:
        await self._server.stop()

    def _listen(self) -> str:
        """A default port that is taken does not keep a second server on a host from serving; one that was set does."""
        host, port = self._settings.admin_host, self._settings.admin_port
        if "admin_port" in self._settings.model_fields_set:
            return self._server.listen(host, port, SETTING)
        try:
            check_free(host, port, SETTING)
            return self._server.listen(host, port, SETTING)
        except ListenFailed as error:
            free = self._server.listen(host, 0, SETTING)
            _log.warning("%s; Danube's admin service listens on %s instead", error, free)
            return free

    def _handlers(self) -> tuple[Any, ...]:
        """From the descriptors, so that no call of the protocol is forgotten."""
        made = []
        for service in pb.DESCRIPTOR.services_by_name.values():
            methods = {}
            for method in service.methods:
                answer = self._calls.get(method.name) or _refusal(service.full_name, method.name)
                methods[method.name] = unary(answer, GetMessageClass(method.input_type), self._counts, self._limit)
            made.append(grpc.method_handlers_generic_handler(service.full_name, methods))
        return tuple(made)


def _refusal(service: str, method: str) -> Answer:
    reason = _REFUSED[service]

    async def refused(_: Any) -> Any:
        raise NotSupported(method, reason)

    return refused
