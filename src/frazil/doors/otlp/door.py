"""Opens OTLP/gRPC and OTLP/HTTP over one intake, and says where they listen."""

from __future__ import annotations

from frazil.doors.listen import for_others, local_address
from frazil.doors.otlp.counts import OtlpCounts
from frazil.doors.otlp.grpc_door import GrpcDoor
from frazil.doors.otlp.http_door import HttpDoor
from frazil.doors.otlp.http_server import HttpServer
from frazil.doors.otlp.intake import OtlpIntake
from frazil.doors.tls import protect
from frazil.node.node import Node


class OtlpDoor:
    """Created and used on one event loop, once the Node has started."""

    def __init__(self, node: Node, counts: OtlpCounts) -> None:
        self._node = node
        self._settings = node.settings.telemetry.otlp
        self._intake = OtlpIntake(node, counts)
        self.grpc = GrpcDoor(node, self._intake)
        tls = protect(node.settings, self._settings, self._settings.http_host, "telemetry.otlp.http_host")
        self._http = HttpServer(HttpDoor(node, self._intake), self._settings, tls)
        self._http_scheme = "http" if tls is None else "https"

    @property
    def held_bytes(self) -> int:
        """Return how much the requests have that are not answered yet."""
        return self._intake.budget.used_bytes

    async def start(self) -> dict[str, str]:
        """Return the addresses by the names that the Node has for them."""
        settings = self._settings
        at = await self.grpc.start()
        advertised = for_others(settings.grpc_host, at, settings.grpc_advertised)
        http = await self._http.start()
        return {
            "otlp_grpc": f"{self.grpc.scheme}://{local_address(at)}",
            "otlp_grpc_advertised": f"{self.grpc.scheme}://{advertised}",
            "otlp_http": f"{self._http_scheme}://{local_address(http)}",
        }

    async def stop(self) -> None:
        """Refuse new requests; answer those in progress."""
        await self._http.stop()
        await self.grpc.stop()
        await self._intake.forwarding.close()
