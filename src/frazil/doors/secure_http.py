"""HTTP over TLS: accepts connections, counts each from its first moment, and bounds the time of its handshake.

uvicorn would count a connection only after its handshake, and keep one certificate for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any

from frazil.doors.client_certificates import SCOPE_EXTENSION, ClientCertificate, peer_certificate
from frazil.doors.descriptors import BoundedHttp, connections_max
from frazil.doors.tls import DoorTls

HANDSHAKE_S_MAX = 20.0
CLOSE_S_MAX = 5.0
ACCEPT_AGAIN_S = 0.1
"""Pause after a failed accept, as when the process has no descriptors left."""

_log = logging.getLogger("frazil.serve")


class SecureHttp(BoundedHttp):
    """HTTP on a TLS transport. Requests carry the client's certificate: `certificate_of_scope`."""

    handshake: object = None
    """What stands for this connection among uvicorn's until now."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.connections.discard(self.handshake)
        found = peer_certificate(transport.get_extra_info("ssl_object"))
        if found is not None:
            self.app = _with_certificate(self.app, found)
        super().connection_made(transport)


class SecureListener:
    """Accepts connections on a listening socket. Created, used and closed on one event loop."""

    def __init__(
        self, listener: socket.socket, tls: DoorTls, make: Callable[[], SecureHttp], connections: set[Any]
    ) -> None:
        """`connections` are uvicorn's; one is in it during its handshake too."""
        self._listener = listener
        self._tls = tls
        self._make = make
        self._connections = connections
        self._handshakes: set[asyncio.Task[None]] = set()
        listener.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    async def close(self) -> None:
        """Accept no more. Handshakes in progress end; connections stay open."""
        ended = [self._accepting, *self._handshakes]
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listener)
            except OSError as error:
                _log.warning("a connection could not be accepted: %s", error.strerror)
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            if len(self._connections) >= connections_max():
                accepted.close()  # an answer could only follow a handshake
            else:
                task = loop.create_task(self._shake_hands(accepted))
                self._handshakes.add(task)
                task.add_done_callback(self._handshakes.discard)
            await asyncio.sleep(0)  # it begins, and is counted: an accept that need not wait gives way to nothing

    async def _shake_hands(self, accepted: socket.socket) -> None:
        place = asyncio.current_task()
        self._connections.add(place)
        try:
            protocol = self._make()
            protocol.handshake = place
            with contextlib.suppress(OSError):
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=self._tls.context(),
                ssl_handshake_timeout=HANDSHAKE_S_MAX,
                ssl_shutdown_timeout=CLOSE_S_MAX,
            )
        except (OSError, ssl.SSLError) as error:
            _log.debug("a TLS handshake failed: %s", error)
            accepted.close()
        except Exception:  # noqa: BLE001 - logged; whatever failed, the client must not wait
            _log.exception("a TLS handshake failed")
            accepted.close()
        finally:
            self._connections.discard(place)


def _with_certificate(app: Any, found: ClientCertificate) -> Any:
    async def called(scope: dict[str, Any], receive: Any, send: Any) -> None:
        extensions = {**(scope.get("extensions") or {}), SCOPE_EXTENSION: found}
        await app({**scope, "extensions": extensions}, receive, send)

    return called
