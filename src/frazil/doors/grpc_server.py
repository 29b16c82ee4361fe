"""The gRPC server of a door: its limits, start and stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import grpc.aio

from frazil.doors.listen import host_and_port, listen_grpc

if TYPE_CHECKING:
    from frazil.doors.tls import DoorTls

STOP_SECONDS_MAX = 5.0
HANDSHAKE_MS_MAX = 20_000
"""A connection that has not completed its handshakes, of TLS and of HTTP/2, is closed."""


class GrpcServer:
    """Create, start and stop it on one event loop."""

    def __init__(
        self,
        message_bytes_max: int,
        connections_max: int,
        *,
        calls_max: int | None = None,
        options: Sequence[tuple[str, int]] = (),
    ) -> None:
        """gRPC refuses messages, connections and calls beyond the limits. `options` are passed to gRPC."""
        self._server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS_MAX),
                ("grpc.max_allowed_incoming_connections", connections_max),
                ("grpc.max_receive_message_length", message_bytes_max),
                ("grpc.max_send_message_length", -1),
                ("grpc.keepalive_time_ms", 20_000),
                ("grpc.keepalive_timeout_ms", 10_000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
                *options,
            ],
            maximum_concurrent_rpcs=calls_max,
        )
        self.port = 0
        self.scheme = "http"
        """Of the addresses for Danube clients."""

    def listen(self, host: str, port: int, setting: str, tls: DoorTls | None = None) -> str:
        """Listen, and return the address as host:port. Raises `ListenFailed` with the setting."""
        self.port = listen_grpc(self._server, host, port, setting, tls)
        self.scheme = "http" if tls is None else "https"
        return host_and_port(host, self.port)

    async def start(self, services: Sequence[Any]) -> None:
        """Start with the tables of `frazil.doors.calls`. Call `listen` first."""
        self._server.add_generic_rpc_handlers(tuple(services))
        await self._server.start()

    async def stop(self, seconds_max: float = STOP_SECONDS_MAX) -> None:
        """Refuse new calls; wait for those in progress."""
        await self._server.stop(seconds_max)
