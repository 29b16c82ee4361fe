"""Listens for OTLP/HTTP: uvicorn's protocol with this server's limits, without uvicorn's own server and signals."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import uvicorn
from starlette.middleware.cors import CORSMiddleware
from uvicorn.server import ServerState

from frazil.core.settings.otlp import OtlpSettings
from frazil.doors.descriptors import BoundedHttp
from frazil.doors.listen import address_of, listen_or_free, listening
from frazil.doors.secure_http import SecureHttp, SecureListener
from frazil.doors.tls import DoorTls
from frazil.node.access.gate import AUTHORIZATION
from frazil.node.request_ids import HEADER, PARENT, App, RequestIds
from frazil.node.telemetry.telemetry import DATASET_HEADER, TENANT_HEADER

SETTING = "--otlp-http-port or telemetry.otlp.http_port"
KEEP_ALIVE_S = 75
"""Exporters send every few seconds. A connection without a request ends sooner: see `frazil.doors.descriptors`."""
STOP_SECONDS_MAX = 5.0
PREFLIGHT_SECONDS_MAX = 600
_CONTENT = ("content-type", "content-encoding")


class HttpServer:
    """Created, started and stopped on one event loop."""

    def __init__(self, app: App, settings: OtlpSettings, tls: DoorTls | None) -> None:
        self._settings = settings
        self._tls = tls
        self._config = uvicorn.Config(
            RequestIds(_with_cors(app, settings)),
            http=BoundedHttp,
            ws="none",
            proxy_headers=False,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._state = ServerState()
        self._open = contextlib.AsyncExitStack()

    async def start(self) -> str:
        """Return the address as host:port."""
        self._config.load()
        settings = self._settings

        def listen(port: int) -> socket.socket:
            return self._open.enter_context(listening(settings.http_host, port, SETTING))

        is_set = "http_port" in settings.model_fields_set
        listener = listen_or_free(listen, settings.http_host, settings.http_port, SETTING, is_set=is_set)
        if self._tls is None:
            server = await asyncio.get_running_loop().create_server(self._plain, sock=listener)
            self._open.callback(server.close)
        else:
            secure = SecureListener(listener, self._tls, self._secured, self._state.connections)
            self._open.push_async_callback(secure.close)
        return address_of(listener)

    async def stop(self) -> None:
        """Accept no more, answer what is there, close the connections."""
        await self._open.aclose()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=STOP_SECONDS_MAX)
        for connection in list(self._state.connections):
            connection.transport.abort()

    def _plain(self) -> BoundedHttp:
        return BoundedHttp(self._config, self._state, {})

    def _secured(self) -> SecureHttp:
        return SecureHttp(self._config, self._state, {})


def _with_cors(app: App, settings: OtlpSettings) -> App:
    """Let pages of these origins send. Browsers send them no stored credentials."""
    if not settings.cors_origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=list(settings.cors_origins),
        allow_methods=["POST"],
        allow_headers=[*_CONTENT, AUTHORIZATION, TENANT_HEADER, DATASET_HEADER, HEADER, PARENT],
        expose_headers=[HEADER, "retry-after"],
        max_age=PREFLIGHT_SECONDS_MAX,
    )
