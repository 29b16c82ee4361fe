"""The serving process: own the folder, open all topics behind the door, stop cleanly on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import uvicorn

from frazil.broker.topic import BrokerTopic
from frazil.core.clock import SystemClock
from frazil.core.errors import FrazilError, InvalidSettings, ListenFailed
from frazil.core.extras import needs
from frazil.core.settings import HttpSettings, Settings
from frazil.log.ownership import told_where
from frazil.pipeline.requirements import check_tasks_reach_store, missing_part
from frazil.serve.descriptors import BoundedHttp, raise_limit
from frazil.serve.flight import FlightDoor
from frazil.serve.http import make_app
from frazil.serve.logs import log_to_stderr
from frazil.serve.mover_process import MoverProcess
from frazil.serve.movers import MoverActions
from frazil.serve.opening import Opening
from frazil.serve.request_ids import RequestIds
from frazil.serve.verbs import Command
from frazil.serve.watch import Watch
from frazil.topics.opening import open_to_move

if TYPE_CHECKING:
    from frazil.log.storage import Storage
    from frazil.serve.broker_doors import BrokerDoors
    from frazil.serve.danube import Publish
    from frazil.serve.traces import Traces

STOP_SECONDS_MAX = 5
_SWITCH_INTERVAL_SECONDS = 0.0005
"""Short hand-overs of the interpreter: a committer that comes back from the disk must not wait 5 ms for its turn."""

_log = logging.getLogger("frazil.serve")


def serve_until_stopped(
    settings: Settings,
    *,
    mover: Sequence[str] | None = None,
    command: Command | None = None,
    log_json: bool = False,
    announce_json: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT, then finish what was queued and return.

    `mover` is the command that moves rows, `command` gives that of any verb.
    """
    if mover is not None:
        check_tasks_reach_store(settings)
    log_to_stderr(as_json=log_json)
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    with (
        open_to_move(settings, moves=mover is not None) as storage,
        _traces(settings) as traces,
        _listening(settings.http) as door,
        contextlib.ExitStack() as running,
    ):
        raise_limit()
        missing = missing_part() if mover is not None else None
        moving = _mover(mover, missing)
        addresses = {"http": _address(door)}
        opening = Opening(storage)
        broker = _broker(storage, settings, BrokerTopic.publish if traces is None else traces.publish, addresses)
        flight = _flight(storage, settings, broker, traces, command)
        watch = Watch(storage, flight, broker, SystemClock(), has_mover=moving is not None, missing=missing)
        app = make_app(
            storage,
            opening,
            None if moving is None else lambda: moving.up,
            broker=None if broker is None else lambda: broker.parts,
            command=command,
            addresses=addresses,
            problems=watch.problems,
            warnings=watch.warnings,
            collectors=watch.collectors,
        )

        def announce() -> None:
            running.enter_context(told_where(settings, addresses))
            _announce(addresses, settings, announce_json)
            if moving is not None:
                moving.start()
                running.callback(moving.stop)

        server = _Server(RequestIds(app), announce, running.close, addresses, flight, broker)
        _run(server, door, opening, running)
        _log.info("stopping: syncing and giving the folder back")
    _log.info("stopped")


def _run(server: _Server, door: socket.socket, opening: Opening, running: contextlib.ExitStack) -> None:
    """Until a signal; then all that runs beside the server has ended."""
    with server.stopped_by_signals():
        opening.start()
        try:
            server.run(sockets=[door])
            if server.failed is not None:
                raise server.failed
        finally:
            running.close()
            opening.stop()


def _flight(
    storage: Storage, settings: Settings, broker: BrokerDoors | None, traces: Traces | None, command: Command | None
) -> FlightDoor:
    return FlightDoor(
        storage,
        settings.flight,
        MoverActions(settings, SystemClock(), None if traces is None else traces.told),
        lambda: broker.broker if broker is not None else None,
        lambda: broker.checks if broker is not None else None,
        traces,
        None if command is None else command("sql", "--while-stdin", "--arrow", "--json"),
    )


def _mover(command: Sequence[str] | None, missing: str | None) -> MoverProcess | None:
    """None where it is not wanted, or can't run here: the log goes on without it."""
    if command is None:
        return None
    if missing is not None:
        _log.error("rows are not moved to tables: %s", missing)
        return None
    return MoverProcess(command, SystemClock())


def _broker(storage: Storage, settings: Settings, publish: Publish, addresses: dict[str, str]) -> BrokerDoors | None:
    """gRPC and the messages of Danube are imported only by those who want its clients."""
    if not settings.broker.enabled:
        return None
    from frazil.serve.broker_doors import BrokerDoors

    return BrokerDoors(storage, settings, publish, addresses)


def _traces(settings: Settings) -> AbstractContextManager[Traces | None]:
    """OpenTelemetry is imported only by those who want traces: it is an extra, and takes its time."""
    if settings.traces.endpoint is None:
        return contextlib.nullcontext()
    with needs(lambda hint: InvalidSettings(f"traces.endpoint: {hint}, or leave the endpoint out")):
        from frazil.serve.traces import traces_open
    return traces_open(settings, SystemClock())


@contextlib.contextmanager
def _listening(http: HttpSettings) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in http.host else socket.AF_INET
    try:
        door = socket.create_server((http.host, http.port), family=family)
    except OSError as error:
        raise ListenFailed(http.host, http.port, error.strerror or str(error)) from None
    with door:
        yield door


def _address(door: socket.socket) -> str:
    host, port = door.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _announce(addresses: dict[str, str], settings: Settings, as_json: bool) -> None:
    """One line on stdout, once requests are answered: scripts wait for it."""
    address = addresses["http"]
    if as_json:
        told = {"address": address, **addresses, "data": str(settings.data)}
        line = json.dumps(
            {name: told[name] for name in ("address", "flight", "danube", "admin", "data") if name in told}
        )
    else:
        line = f"frazil listens on {address}, data in {settings.data}"
    try:
        print(line, flush=True)  # noqa: T201
    except OSError as error:
        _log.warning("nobody reads stdout: %s", error.strerror)  # no reason not to serve
    doors = ", ".join(addresses[name] for name in ("http", "flight", "danube", "admin") if name in addresses)
    _log.info("listening on %s", doors, extra={**addresses, "data": str(settings.data)})


class _Server(uvicorn.Server):
    """uvicorn, but a signal ends it as a success: by itself it raises the signal again when it has stopped."""

    def __init__(
        self,
        app: object,
        announce: Callable[[], None],
        before_the_end: Callable[[], None],
        addresses: dict[str, str],
        flight: FlightDoor,
        broker: BrokerDoors | None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,  # type: ignore[arg-type]
                http=BoundedHttp,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=STOP_SECONDS_MAX,
                lifespan="off",
            )
        )
        self._announce = announce
        self._before_the_end = before_the_end
        self._addresses = addresses
        self._flight = flight
        self._broker = broker
        self.failed: FrazilError | None = None
        if broker is not None:
            broker.on_lost = self._end_with

    def _end_with(self, error: FrazilError) -> None:
        self.failed, self.should_exit = error, True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """The broker runs on the same loop: a hop between threads for each message would cost more than the rest."""
        await super().startup(sockets)
        if not self.started or self.should_exit:
            return
        try:
            if self._broker is not None:  # first: it has what the Flight door checks messages by
                self._addresses |= await self._broker.open()
            await self._flight.start()
            self._addresses |= {"flight": self._flight.address, "advertised": self._flight.advertised}
        except FrazilError as error:
            self._end_with(error)
            if self._broker is not None:
                await self._broker.close()
            return
        self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """The mover goes first: it still tells by the Flight door how far it has come."""
        await asyncio.to_thread(self._before_the_end)
        await self._flight.stop()
        if self._broker is not None:
            await self._broker.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handled by `stopped_by_signals`, which also covers the time before and after."""
        yield

    @contextlib.contextmanager
    def stopped_by_signals(self) -> Iterator[None]:
        def stop(*_: object) -> None:
            self.force_exit = self.should_exit  # a second signal does not wait for open requests
            self.should_exit = True

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
