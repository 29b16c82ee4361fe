"""The gRPC server of the admin service: every call of the protocol is either answered or refused with the reason."""

from __future__ import annotations

from typing import Any

from google.protobuf.message_factory import GetMessageClass

from frazil.core.access import Action
from frazil.core.errors import NotOwner, NotSupported
from frazil.core.names import TopicName
from frazil.core.principal import ANONYMOUS
from frazil.core.settings import MIB
from frazil.doors import calls
from frazil.doors.calls import Answer, CallLimit, Method, Rules, Service
from frazil.doors.danube_admin import danube_admin_pb2 as pb
from frazil.doors.danube_admin.admin_call import AdminCall
from frazil.doors.danube_admin.brokers import BrokerCalls
from frazil.doors.danube_admin.forwarding import Forwarding
from frazil.doors.danube_admin.policies import PolicyCalls
from frazil.doors.danube_admin.topics import TopicCalls
from frazil.doors.described_server import DescribedServer
from frazil.doors.descriptors import admin_connections_max
from frazil.doors.listen import for_others, listen_or_free
from frazil.doors.owning import Owning
from frazil.doors.rights import on_server
from frazil.doors.tls import protect
from frazil.node.node import Node

SETTING = "--admin-port or broker.admin_port"
REQUEST_BYTES_MAX = MIB
NO_RAFT = "a cluster of Frazil has no Raft: a broker joins it when it starts, and leaves it when it ends"
NO_ROLES = "roles and bindings of a Frazil server are changed by its own verbs and over HTTP"
_REFUSED = {
    "danube_admin.ClusterAdmin": NO_RAFT,
    "danube_admin.SecurityAdmin": NO_ROLES,
}

_REFUSED_NEEDS = {
    "danube_admin.ClusterAdmin": on_server(Action.OPERATE),
    "danube_admin.SecurityAdmin": on_server(Action.GRANT),
}
"""The rights to learn that a call is not supported."""


class AdminDoor:
    """Created and used on the broker's event loop."""

    def __init__(self, node: Node) -> None:
        """The broker of the Node must be open."""
        self._node = node
        self._settings = node.settings.broker
        self._server = DescribedServer(REQUEST_BYTES_MAX, admin_connections_max())
        self.url = ""
        self._owning = Owning(node)
        self._forwarding = Forwarding(node.settings)
        topics = TopicCalls(node)
        brokers = BrokerCalls(node, topics, lambda: self.url)
        self._calls: dict[str, AdminCall] = {**brokers.calls(), **topics.calls(), **PolicyCalls(node).calls()}

    async def start(self) -> None:
        address = self._listen()
        if self._owning.is_clustered:
            address = for_others(self._settings.admin_host, address)
        self.url = f"{self._server.scheme}://{address}"
        limit = CallLimit("broker.calls_max", self._settings.calls_max)
        rules = Rules(self._node.gate, limit, refused=self._node.broker(ANONYMOUS).counts.refuse)
        services = [calls.service(name, methods, rules) for name, methods in self.tables()]
        await self._server.start_described(services, (pb.DESCRIPTOR,))

    async def stop(self) -> None:
        await self._server.stop()
        await self._forwarding.close()

    def _listen(self) -> str:
        """If the default port is in use, another one is taken, so that a second server can run on the host; a
        configured port must be free."""
        host, port = self._settings.admin_host, self._settings.admin_port
        tls = protect(self._node.settings, self._settings, host, "broker.admin_host")
        is_set = "admin_port" in self._settings.model_fields_set

        def listen(free: int) -> str:
            return self._server.listen(host, free, SETTING, tls)

        return listen_or_free(listen, host, port, SETTING, is_set=is_set)

    def tables(self) -> list[Service]:
        """Build the tables from the descriptors, so that no call of the protocol is missing."""
        services = pb.DESCRIPTOR.services_by_name.values()
        return [
            Service(one.full_name, [self._method(one.full_name, method) for method in one.methods]) for one in services
        ]

    def _method(self, service: str, method: Any) -> Method:
        found = self._calls.get(method.name)
        if found is None:
            found = AdminCall(_refusal(service, method.name), _REFUSED_NEEDS[service])
        request, answer = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        run = found.answer
        if found.topic is not None:
            run = self._at_owner(f"/{service}/{method.name}", found.topic, found.answer, answer)
        return Method(method.name, request, run, found.needs, answer)

    def _at_owner(self, path: str, field: str, answer: Answer, kind: Any) -> Answer:
        """Answer a call for a topic of this broker; that for another one is answered by its owner."""

        async def call(request: Any) -> Any:
            try:
                self._owning.check_family(TopicName.parse(getattr(request, field)))
            except NotOwner as elsewhere:
                return await self._forwarding.call(path, request, kind, elsewhere)
            return await answer(request)

        return call


def _refusal(service: str, method: str) -> Answer:
    reason = _REFUSED[service]

    async def refused(_: Any) -> Any:
        raise NotSupported(method, reason)

    return refused
