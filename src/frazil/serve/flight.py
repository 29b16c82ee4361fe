"""The Flight door: topics over Arrow Flight, for Frazil's own clients and for movers.

    action `logs`   one JSON list: for each log its id, what is durable, and where its files are
    do_get          rows, see `frazil.serve.flight_reading`, or the answer to a query, see `frazil.serve.flight_sql`
    do_put          batches into a topic, see `frazil.serve.flight_publishing`
    do_exchange     a subscription, see `frazil.serve.flight_subscriptions`

It also has the actions of `frazil.serve.flight_topics` and, where other processes may move the rows, those of
`frazil.serve.movers`. A mover elsewhere needs no more than this: neither the owner's disk nor its lock. Only what is
durable is handed out, and only of the log that was asked for: a topic made again under the same name has another id.

It is gRPC by hand, not Arrow's own server: that one takes messages of any size, and decompresses them before we see
them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import uvloop

from frazil.broker.broker import Broker
from frazil.broker.deleting import delete_with_records
from frazil.core.errors import InvalidInput, ListenFailed
from frazil.core.names import TopicName
from frazil.core.put_notes import MESSAGE_BYTES_MAX
from frazil.core.settings import FlightSettings
from frazil.log.info import LogList, as_json
from frazil.log.storage import Storage
from frazil.pipeline.lease import this_host
from frazil.serve import flight_pb2 as pb
from frazil.serve.descriptors import connections_max
from frazil.serve.flight_calls import Calls, Context, answered, checked, reader_of
from frazil.serve.flight_publishing import Publishing
from frazil.serve.flight_reading import Reading
from frazil.serve.flight_sql import SqlAnswers, is_sql
from frazil.serve.flight_subscriptions import Subscriptions
from frazil.serve.flight_topics import TopicActions
from frazil.serve.flight_wire import received
from frazil.serve.metrics_flight import FlightCounts
from frazil.serve.movers import MoverActions

if TYPE_CHECKING:
    from frazil.serve.schema_checks import SchemaChecks
    from frazil.serve.traces import Traces

STOP_SECONDS_MAX = 5.0
ACTIONS_MAX = 256
"""At once, besides the streams. Each call may hold one message that is not whole yet: so many, and no more."""
SERVICE = "arrow.flight.protocol.FlightService"

_log = logging.getLogger("frazil.serve")


class FlightDoor:
    """Made anywhere; started, used and stopped on one event loop."""

    def __init__(
        self,
        storage: Storage,
        settings: FlightSettings,
        movers: MoverActions | None = None,
        broker_of: Callable[[], Broker | None] = lambda: None,
        checks_of: Callable[[], SchemaChecks | None] = lambda: None,
        traces: Traces | None = None,
        sql: Sequence[str] | None = None,
    ) -> None:
        """`sql` is the command that answers queries."""
        self._storage = storage
        self._logs = LogList(storage)
        self._settings = settings
        self._actions: dict[str, Callable[[bytes], bytes]] = {
            "logs": self._list_logs,
            **TopicActions(storage, settings, self._delete_topic).by_name,
            **(movers.by_name if movers is not None else {}),
        }
        self._broker_of = broker_of
        self._checks_of = checks_of
        self._traces = traces
        self._sql_command = sql
        self.counts = FlightCounts()
        self._server: Any = None
        self._calls: Calls | None = None
        self._reading: Reading | None = None
        self._sql: SqlAnswers | None = None
        self._publishing: Publishing | None = None
        self._subscriptions: Subscriptions | None = None
        self.port = settings.port

    @property
    def address(self) -> str:
        """Where this host reaches it; one that listens everywhere is reached by loopback."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._settings.host, self._settings.host)  # noqa: S104
        return _location(host, self.port)

    @property
    def advertised(self) -> str:
        """Where other hosts reach it: as told, else where it listens, and by the host's name if that is everywhere."""
        if self._settings.advertised is not None:
            return f"grpc://{self._settings.advertised.removeprefix('grpc://')}"
        everywhere = self._settings.host in ("0.0.0.0", "::")  # noqa: S104
        return _location(this_host() if everywhere else self._settings.host, self.port)

    async def start(self) -> None:
        self._calls = Calls(self._settings.streams_max, self.counts)
        self._reading = Reading(self._storage, self._calls)
        self._sql = SqlAnswers(self._sql_command, self._calls, self._settings.query_seconds_max)
        self._publishing = Publishing(self._storage, self._settings, self._calls, self._checks_of(), self._traces)
        self._subscriptions = Subscriptions(self._broker_of, self._calls)
        self._server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_allowed_incoming_connections", connections_max()),
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
                ("grpc.max_send_message_length", -1),
                ("grpc.keepalive_time_ms", 20_000),
                ("grpc.keepalive_timeout_ms", 10_000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
                ("grpc.http2.max_ping_strikes", 0),
            ],
            maximum_concurrent_rpcs=self._settings.streams_max + ACTIONS_MAX,
        )
        self._server.add_generic_rpc_handlers((self._service(),))
        host, port = self._settings.host, self._settings.port
        try:
            self.port = self._server.add_insecure_port(_location(host, port).removeprefix("grpc://"))
        except RuntimeError as error:
            _log.debug("the Flight door failed to listen: %s", error)
            reason, setting = "in use, or no address of this host", "--flight-port or flight.port"
            raise ListenFailed(host, port, reason, setting) from None
        await self._server.start()

    async def stop(self) -> None:
        """What was begun is answered, streams end. A client that takes no more of its batches is not waited for."""
        if self._calls is not None:
            self._calls.end_streams()
        if self._server is not None:
            await self._server.stop(STOP_SECONDS_MAX)
        if self._calls is not None:
            self._calls.close()

    # --- what Flight calls

    def _service(self) -> Any:
        handlers = {
            "ListActions": grpc.unary_stream_rpc_method_handler(
                self._list_actions, reader_of(pb.Empty), pb.ActionType.SerializeToString
            ),
            "DoAction": grpc.unary_stream_rpc_method_handler(
                self._do_action, reader_of(pb.Action), pb.Result.SerializeToString
            ),
            "DoGet": grpc.unary_stream_rpc_method_handler(self._do_get, reader_of(pb.Ticket)),
            "DoPut": grpc.stream_stream_rpc_method_handler(self._do_put, received, pb.PutResult.SerializeToString),
            "DoExchange": grpc.stream_stream_rpc_method_handler(self._do_exchange, received),
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def _list_actions(self, _: Any, __: Context) -> AsyncIterator[pb.ActionType]:
        for name in self._actions:
            yield pb.ActionType(type=name, description="see frazil.serve.flight")

    async def _do_action(self, request: Any, context: Context) -> None:
        async def act() -> None:
            action = checked(request)
            found = self._actions.get(action.type)
            if found is None:
                raise InvalidInput(f"there is no action {action.type!r:.80}; there is: {', '.join(self._actions)}")
            assert self._calls is not None
            await context.write(pb.Result(body=await self._calls.blocking(found, action.body)))

        await answered(context, act())

    async def _do_get(self, request: Any, context: Context) -> None:
        async def get() -> None:
            assert self._reading is not None
            assert self._sql is not None
            ticket = checked(request).ticket
            await (self._sql if is_sql(ticket) else self._reading).get(ticket, context)

        await answered(context, get())

    async def _do_put(self, _: Any, context: Context) -> None:
        assert self._publishing is not None
        await answered(context, self._publishing.put(context))

    async def _do_exchange(self, _: Any, context: Context) -> None:
        assert self._subscriptions is not None
        await answered(context, self._subscriptions.exchange(context))

    def _delete_topic(self, topic: str, force: bool) -> None:
        """In a thread. By the broker, where there is one: it knows who uses the topic."""
        broker = self._broker_of()
        if broker is None:
            delete_with_records(self._storage, topic, force=force)
            return
        assert self._calls is not None
        work = broker.delete_topic(TopicName.parse(topic), force=force)
        asyncio.run_coroutine_threadsafe(work, self._calls.loop).result()

    def _list_logs(self, _: bytes) -> bytes:
        return json.dumps([as_json(info) for info in self._logs.read()]).encode()


def _location(host: str, port: int) -> str:
    return f"grpc://[{host}]:{port}" if ":" in host else f"grpc://{host}:{port}"


@contextlib.contextmanager
def flight_door(storage: Storage, settings: FlightSettings, movers: MoverActions | None = None) -> Iterator[FlightDoor]:
    """The door on a loop of its own, for a process that has none."""
    door = FlightDoor(storage, settings, movers)
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
