"""The serving process: own the folder, open all topics in the background, stop cleanly on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence

import uvicorn
from prometheus_client.registry import Collector

from frazil.core.clock import SystemClock
from frazil.core.errors import FrazilError
from frazil.core.principal import LOCAL
from frazil.core.settings import Settings
from frazil.core.settings.exposure import check_binds, exposed_doors
from frazil.doors.descriptors import BoundedHttp, raise_limit
from frazil.doors.flight.door import FlightDoor
from frazil.doors.flight.metrics import FlightCollector
from frazil.doors.http.door import make_app
from frazil.doors.listen import address_of, for_others, listening
from frazil.doors.otlp.counts import OtlpCollector, OtlpCounts
from frazil.doors.secure_http import SecureHttp, SecureListener
from frazil.doors.tls import DoorTls, protect, served_certificates
from frazil.log.folder.ownership import published_addresses
from frazil.node.jobs.verbs import Command
from frazil.node.movers.movers import Movers
from frazil.node.node import open_node
from frazil.node.request_ids import RequestIds
from frazil.node.topics.startup import Opening
from frazil.pipeline.spark.requirements import check_tasks_reach_store, missing_part
from frazil.serve.doors import Doors
from frazil.serve.logs import log_to_stderr
from frazil.serve.mover_process import MoverProcess

STOP_SECONDS_MAX = 5
DOORS = ("http", "flight", "danube", "admin", "otlp_grpc", "otlp_http")
"""Names of addresses that are announced."""
_SWITCH_INTERVAL_SECONDS = 0.0005
"""Short thread switches: a committer that returns from the disk must not wait 5 ms for the interpreter."""

_log = logging.getLogger("frazil.serve")


def serve_until_stopped(
    settings: Settings,
    *,
    mover: Sequence[str] | None = None,
    command: Command | None = None,
    log_json: bool = False,
    announce_json: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT, then finish queued work and return.

    `mover` is the command that moves rows, `command` returns that of any verb.
    """
    if mover is not None:
        check_tasks_reach_store(settings)
    log_to_stderr(as_json=log_json)
    check_binds(settings)
    tls = protect(settings, settings.http, settings.http.host, "http.host")
    certificates = served_certificates(settings)
    for exposed in exposed_doors(settings):
        _log.warning("insecure: %s", exposed)
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    with (
        open_node(settings, moves=mover is not None, serves=True, command=command) as node,
        listening(settings.http.host, settings.http.port, "--port or http.port") as door,
        contextlib.ExitStack() as running,
    ):
        raise_limit()
        moving = _mover(mover, node.movers(LOCAL))
        scheme, at, http = "http" if tls is None else "https", address_of(door), settings.http
        node.addresses["http"] = f"{scheme}://{at}"
        node.addresses["http_advertised"] = f"{scheme}://{for_others(http.host, at, http.advertised)}"
        flight = FlightDoor(node, settings.flight, movers=True)

        def announce() -> None:
            running.enter_context(published_addresses(settings, {**node.addresses, **certificates}))
            _announce(node.addresses, settings, announce_json)
            if moving is not None:
                moving.start()
                running.callback(moving.stop)

        collectors: list[Collector] = [FlightCollector(flight.counts)]
        otlp = OtlpCounts() if settings.telemetry.enabled else None
        if otlp is not None:
            collectors.append(OtlpCollector(otlp))
        app = RequestIds(make_app(node, collectors))
        server = _Server(app, Doors(node, flight, otlp), announce, running.close, tls)
        _run(server, door, node.health(LOCAL).opening, running)
        _log.info("stopping: syncing and releasing the folder")
    _log.info("stopped")


def _run(server: _Server, door: socket.socket, opening: Opening, running: contextlib.ExitStack) -> None:
    """Run until a signal; everything started with the server has ended when it returns."""
    with server.stopped_by_signals():
        opening.start()
        try:
            server.run(sockets=[door])
            if server.failed is not None:
                raise server.failed
        finally:
            running.close()
            opening.stop()


def _mover(command: Sequence[str] | None, movers: Movers) -> MoverProcess | None:
    """Start the mover; None if it is disabled or cannot run here: the log works without it."""
    if command is None:
        return None
    movers.missing = missing_part()
    if movers.missing is not None:
        _log.error("rows are not moved to tables: %s", movers.missing)
        return None
    movers.child = moving = MoverProcess(command, SystemClock())
    return moving


def _announce(addresses: dict[str, str], settings: Settings, as_json: bool) -> None:
    """Print one line on stdout once requests are answered: scripts wait for it."""
    address = addresses["http"]
    if as_json:
        values = {"address": address, **addresses, "data": str(settings.data)}
        line = json.dumps({name: values[name] for name in ("address", *DOORS[1:], "data") if name in values})
    else:
        line = f"frazil listens on {address}, data in {settings.data}"
    try:
        print(line, flush=True)  # noqa: T201
    except OSError as error:
        _log.warning("stdout is closed: %s", error.strerror)  # no reason to stop serving
    doors = ", ".join(addresses[name] for name in DOORS if name in addresses)
    _log.info("listening on %s", doors, extra={**addresses, "data": str(settings.data)})


class _Server(uvicorn.Server):
    """uvicorn, but a signal ends it successfully: by default it raises the signal again after it has stopped."""

    def __init__(
        self,
        app: object,
        doors: Doors,
        announce: Callable[[], None],
        before_the_end: Callable[[], None],
        tls: DoorTls | None = None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,  # type: ignore[arg-type]
                http=BoundedHttp,
                ws="none",  # its connections would be beyond all limits
                proxy_headers=False,  # the audit log has the address that called, not one that a header names
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=STOP_SECONDS_MAX,
                lifespan="off",
            )
        )
        self._doors = doors
        self._announce = announce
        self._before_the_end = before_the_end
        self._tls = tls
        self._secure: list[SecureListener] = []
        self.failed: FrazilError | None = None

    def _end_with(self, error: FrazilError) -> None:
        self.failed, self.should_exit = error, True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """The broker runs on the same loop: a thread hop for each message would cost more than the rest."""
        await super().startup(sockets if self._tls is None else [])
        if not self.started or self.should_exit:
            return
        if self._tls is not None:
            state = self.server_state
            self._secure = [
                SecureListener(one, self._tls, self._secure_http, state.connections) for one in sockets or ()
            ]
        try:
            await self._doors.start(self._end_with)
        except FrazilError as error:
            self._end_with(error)
            await self._doors.stop()
            return
        self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop the mover first: it still reports its progress over Flight."""
        await asyncio.to_thread(self._before_the_end)
        await self._doors.stop()
        for listener in self._secure:
            await listener.close()
        await super().shutdown(sockets)

    def _secure_http(self) -> SecureHttp:
        return SecureHttp(self.config, self.server_state, self.lifespan.state)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: `stopped_by_signals` handles them, also before and after."""
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
