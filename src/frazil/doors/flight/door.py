"""The Flight server: topics over Arrow Flight, for stock Flight clients, Frazil's own, and movers.

    action `logs`   one JSON list: for each log its id, what is durable, and where its files are
    do_get          rows, see `frazil.doors.flight.get.reading`, or a query's result, see `frazil.doors.flight.get.sql`
    do_put          batches into a topic, see `frazil.doors.flight.put.publishing`
    list_flights    the topics, and get_flight_info and get_schema of one, see `frazil.doors.flight.get.infos`
    do_exchange     a subscription, see `frazil.doors.flight.subscriptions`

It also has the actions of `frazil.doors.flight.topics` and, if other processes may move the rows, those of
`frazil.doors.flight.movers`. A remote mover needs only this: neither the owner's disk nor its lock. Only durable rows
are returned, and only of the requested log: a recreated topic has another id.

It implements gRPC directly instead of using Arrow's server, which accepts messages of any size and decompresses them
before they can be checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import uvloop

from frazil.core.access import Right
from frazil.core.errors import InvalidInput, InvalidSettings
from frazil.core.principal import ANONYMOUS, Principal
from frazil.core.put_notes import MESSAGE_BYTES_MAX
from frazil.core.settings import FlightSettings
from frazil.doors.admission import BY_HANDLER, IDENTIFIED, RequestLimits, Rights, who
from frazil.doors.calls import Context, Method, Rules, Service, Streams, service, write_in_time
from frazil.doors.descriptors import connections_max
from frazil.doors.flight import flight_pb2 as pb
from frazil.doors.flight.actions import ABOUT, FlightAction, operate
from frazil.doors.flight.calls import Calls, arrow_status, plain_status
from frazil.doors.flight.get.infos import Infos
from frazil.doors.flight.get.reading import Reading
from frazil.doors.flight.get.sql import SqlAnswers, is_sql
from frazil.doors.flight.metrics import FlightCounts
from frazil.doors.flight.movers import MoverActions
from frazil.doors.flight.put.publishing import Publishing
from frazil.doors.flight.subscriptions import Subscriptions
from frazil.doors.flight.table_actions import TableActions
from frazil.doors.flight.targets import Targets
from frazil.doors.flight.topics import TopicActions
from frazil.doors.flight.wire import received
from frazil.doors.grpc_server import GrpcServer
from frazil.doors.listen import host_and_port, is_everywhere, local
from frazil.doors.tls import protect, tls_of
from frazil.node.movers.lease import this_host
from frazil.node.node import Node
from frazil.node.request_ids import current
from frazil.node.telemetry.opening import read_tenants
from frazil.node.types.log import Storage, as_json

STOP_SECONDS_MAX = 5.0
ACTIONS_MAX = 256
"""Concurrent actions, besides the streams. Each call may hold one incomplete message."""
ASK_TABLES = frozenset(("stats", "topic_stats"))
"""Actions that ask the catalog, which may hang: they must not block publishers."""
SERVICE = "arrow.flight.protocol.FlightService"


class FlightDoor:
    """Create it anywhere; start, use and stop it on one event loop."""

    def __init__(self, node: Node, settings: FlightSettings, *, movers: bool = False) -> None:
        """`movers`: other processes may move the rows, and report to this one."""
        self._node = node
        self._settings = settings
        self._targets = Targets(node)
        self._table_actions = TableActions(node, self._targets)
        self.actions: dict[str, FlightAction] = {
            "logs": FlightAction(operate, self._list_logs),
            **TopicActions(node, settings).by_name,
            **self._table_actions.by_name,
            **(MoverActions(node.movers(ANONYMOUS), partial(read_tenants, node.settings)).by_name if movers else {}),
        }
        self.counts = FlightCounts()
        self._server: GrpcServer | None = None
        self._calls: Calls | None = None
        self._infos: Infos | None = None
        self._reading: Reading | None = None
        self._sql: SqlAnswers | None = None
        self._publishing: Publishing | None = None
        self._subscriptions: Subscriptions | None = None
        self.port = settings.port

    @property
    def address(self) -> str:
        """The address for clients on this host: loopback if the server listens on all interfaces."""
        return f"{self._scheme}://{host_and_port(local(self._settings.host), self.port)}"

    @property
    def _scheme(self) -> str:
        return "grpc+tls" if tls_of(self._node.settings, self._settings).is_on else "grpc"

    @property
    def advertised(self) -> str:
        """The address for other hosts: the configured one, else where it listens, or the host's name if it listens on
        all interfaces."""
        if self._settings.advertised is not None:
            return f"{self._scheme}://{self._settings.advertised.rpartition('://')[2]}"
        host = this_host() if is_everywhere(self._settings.host) else self._settings.host
        return f"{self._scheme}://{host_and_port(host, self.port)}"

    async def start(self) -> None:
        if self._node.settings.security.enabled and not self._node.gate.is_on:
            raise InvalidSettings("security.enabled: only `frazil serve` checks who calls; serve this folder with it")
        self._calls = Calls(self._settings.streams_max, self.counts, self._node)
        self._infos = Infos(self._node, self._settings, self._calls, self._targets)
        self._reading = Reading(self._node, self._calls, self._targets)
        self._sql = SqlAnswers(self._node, self._calls, self._settings.query_seconds_max)
        self._publishing = Publishing(self._node, self._settings, self._calls, self._targets)
        self._subscriptions = Subscriptions(self._node, self._calls)
        self._server = GrpcServer(
            MESSAGE_BYTES_MAX,
            connections_max(),
            calls_max=self._settings.streams_max + ACTIONS_MAX,
            options=[("grpc.http2.max_ping_strikes", 0)],
        )
        host, port = self._settings.host, self._settings.port
        tls = protect(self._node.settings, self._settings, host, "flight.host")
        self._server.listen(host, port, "--flight-port or flight.port", tls)
        self.port = self._server.port
        requests = RequestLimits((self._settings.streams_max + ACTIONS_MAX) // 2)
        rules = Rules(self._node.gate, error_mapping=arrow_status, requests=requests)
        await self._server.start([service(name, methods, rules) for name, methods in self.tables()])

    async def stop(self) -> None:
        """Answer calls in progress and end streams. A client that stops reading is not waited for."""
        if self._calls is not None:
            self._calls.end_streams()
        if self._server is not None:
            await self._server.stop(STOP_SECONDS_MAX)
        if self._calls is not None:
            self._calls.close()
        self._table_actions.close()

    # --- Flight's methods

    def tables(self) -> list[Service]:
        """Return the table of calls of a door that was started."""

        def plain(
            name: str, kind: Any, handler: Any, needs: Rights, answer: Any, how: Streams = Streams.NONE
        ) -> Method:
            return Method(name, kind, handler, needs, answer, how, error_mapping=plain_status)

        assert self._infos is not None
        assert self._publishing is not None
        assert self._subscriptions is not None
        infos, answers, both = self._infos, Streams.ANSWERS, Streams.BOTH
        table = [
            plain("ListFlights", pb.Criteria, infos.flights, IDENTIFIED, pb.FlightInfo, answers),
            plain("GetFlightInfo", pb.FlightDescriptor, infos.info, infos.rights, pb.FlightInfo),
            plain("GetSchema", pb.FlightDescriptor, infos.schema, infos.rights, pb.SchemaResult),
            Method("ListActions", pb.Empty, self._list_actions, IDENTIFIED, pb.ActionType, answers),
            Method("DoAction", pb.Action, self._do_action, self._action_rights, pb.Result, answers),
            Method("DoGet", pb.Ticket, self._do_get, self._ticket_rights, streams=answers),
            Method("DoPut", received, self._publishing.put, BY_HANDLER, pb.PutResult, both),
            Method("DoExchange", received, self._subscriptions.exchange, BY_HANDLER, streams=both),
        ]
        return [Service(SERVICE, table)]

    async def _list_actions(self, _: Any, context: Context) -> None:
        for name in self.actions:
            await write_in_time(context, pb.ActionType(type=name, description=ABOUT[name]))

    async def _do_action(self, action: Any, context: Context) -> None:
        assert self._calls is not None
        run, calls = self._action(action).run, self._calls
        if run is None:
            answer = await self._table_actions.flush(calls, action.body, context)
        else:
            in_thread = calls.reading if action.type in ASK_TABLES else calls.blocking
            answer = await in_thread(run, who(), action.body)
        await write_in_time(context, pb.Result(body=answer))

    def _action(self, action: Any) -> FlightAction:
        found = self.actions.get(action.type)
        if found is None:
            raise InvalidInput(f"there is no action {action.type!r:.80}; known actions: {', '.join(self.actions)}")
        return found

    def _action_rights(self, action: Any) -> Sequence[Right]:
        found, asked = self._action(action), current()
        if asked is not None:
            asked.call = f"DoAction {action.type}"
        return found.needs(action.body)

    async def _do_get(self, request: Any, context: Context) -> None:
        assert self._reading is not None
        assert self._sql is not None
        await (self._sql if is_sql(request.ticket) else self._reading).get(request.ticket, context)

    def _ticket_rights(self, request: Any) -> Sequence[Right]:
        assert self._reading is not None
        return self._reading.rights(request.ticket)

    def _list_logs(self, caller: Principal, _: bytes) -> bytes:
        return json.dumps([as_json(info) for info in self._node.logs(caller)]).encode()


@contextlib.contextmanager
def flight_door(node: Node | Storage, settings: FlightSettings, *, movers: bool = False) -> Iterator[FlightDoor]:
    """Run the door on its own loop, for a process without one. A storage is served as a Node without broker."""
    door = FlightDoor(node if isinstance(node, Node) else Node(node), settings, movers=movers)
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="frazil-flight", daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(door.start(), loop).result()
        yield door
    finally:
        asyncio.run_coroutine_threadsafe(door.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
