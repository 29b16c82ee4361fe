"""A gRPC server with gRPC's health service and reflection, which Danube's tools use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from frazil.doors.grpc_server import STOP_SECONDS_MAX, GrpcServer
from frazil.doors.public_services import PublicHealth, PublicReflection


class DescribedServer(GrpcServer):
    def __init__(
        self, message_bytes_max: int, connections_max: int, *, options: Sequence[tuple[str, int]] = ()
    ) -> None:
        super().__init__(message_bytes_max, connections_max, options=options)
        self._health = PublicHealth()

    async def start_described(self, services: Sequence[Any], files: Sequence[Any]) -> None:
        """`files` are the descriptors of the services, for reflection."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = [one.full_name for file in files for one in file.services_by_name.values()]
        described = PublicReflection([*names, health.SERVICE_NAME, reflection.SERVICE_NAME])
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(described, self._server)
        await self.start(services)
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, seconds_max: float = STOP_SECONDS_MAX) -> None:
        await self._health.enter_graceful_shutdown()
        await super().stop(seconds_max)
