"""The serving process: own the folder, open all topics behind the door, stop cleanly when told."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator

import uvicorn

from frazil.core.errors import ListenFailed
from frazil.core.settings import HttpSettings, Settings
from frazil.log.storage import open_storage
from frazil.serve.http import make_app
from frazil.serve.logs import log_to_stderr
from frazil.serve.opening import Opening

STOP_SECONDS_MAX = 5
_SWITCH_INTERVAL_SECONDS = 0.0005
"""Short hand-overs of the interpreter: a committer that comes back from the disk must not wait 5 ms for its turn."""

_log = logging.getLogger("frazil.serve")


def serve_until_stopped(settings: Settings, *, log_json: bool = False, announce_json: bool = False) -> None:
    """Serve until SIGTERM or SIGINT, then finish what was queued and return."""
    log_to_stderr(as_json=log_json)
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    with open_storage(settings) as storage, _listening(settings.http) as door:
        opening = Opening(storage)
        address = _address(door)

        def announce() -> None:
            _announce(address, settings, announce_json)

        server = _Server(make_app(storage, opening), announce)
        with server.stopped_by_signals():
            opening.start()
            try:
                server.run(sockets=[door])
            finally:
                opening.stop()
        _log.info("stopping: syncing and giving the folder back")
    _log.info("stopped")


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


def _announce(address: str, settings: Settings, as_json: bool) -> None:
    """One line on stdout, once requests are answered: scripts wait for it."""
    if as_json:
        print(json.dumps({"address": address, "data": str(settings.data)}), flush=True)  # noqa: T201
    else:
        print(f"frazil listens on {address}, data in {settings.data}", flush=True)  # noqa: T201
    _log.info("listening on %s", address, extra={"address": address, "data": str(settings.data)})


class _Server(uvicorn.Server):
    """uvicorn, but a signal ends it as a success: by itself it raises the signal again when it has stopped."""

    def __init__(self, app: object, announce: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,  # type: ignore[arg-type]
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=STOP_SECONDS_MAX,
                lifespan="off",
            )
        )
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and not self.should_exit:
            self._announce()

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
