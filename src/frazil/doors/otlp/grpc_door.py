"""OTLP/gRPC: the Export calls of traces, logs and metrics. Profiles are refused as not supported.

gRPC decompresses gzip itself, within the limit of a message. A request is received only once its sender is identified,
its rights are checked and there is room for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from frazil.core.errors import FrazilError, NotSupported
from frazil.core.principal import Principal
from frazil.core.settings.otlp import OtlpSettings
from frazil.doors import calls
from frazil.doors.admission import BY_HANDLER, IDENTIFIED, too_slow, who
from frazil.doors.calls import ErrorStatus, Method, Refused, Rules, Service, calling, checked, grpc_status
from frazil.doors.client_certificates import certificate_of_call
from frazil.doors.described_server import DescribedServer
from frazil.doors.descriptors import connections_max
from frazil.doors.listen import listen_or_free
from frazil.doors.otlp.headers import Export, export_of, sender_of
from frazil.doors.otlp.intake import OtlpIntake
from frazil.doors.otlp.statuses import DETAILS, OtlpStatus, StatusError, otlp_status
from frazil.doors.tls import protect
from frazil.node.node import Node
from frazil.telemetry.requests import FILES, PROFILES_SERVICE, SERVICES
from frazil.telemetry.signals import Signal

SETTING = "--otlp-grpc-port or telemetry.otlp.grpc_port"
STREAMS_OF_CONNECTION_MAX = 256
NO_PROFILES = "Frazil keeps traces, logs and metrics; leave profiles out of the exporter's pipeline"


class GrpcDoor:
    """Created and used on one event loop."""

    def __init__(self, node: Node, intake: OtlpIntake) -> None:
        self._node = node
        self._intake = intake
        self._settings = node.settings.telemetry.otlp
        self._server = DescribedServer(
            self._settings.request_bytes_max,
            connections_max(),
            options=[("grpc.max_concurrent_streams", STREAMS_OF_CONNECTION_MAX)],
        )

    @property
    def scheme(self) -> str:
        return self._server.scheme

    async def start(self) -> str:
        """Return the address as host:port."""
        host, settings = self._settings.grpc_host, self._settings
        tls = protect(self._node.settings, settings, host, "telemetry.otlp.grpc_host")

        def listen(port: int) -> str:
            return self._server.listen(host, port, SETTING, tls)

        is_set = "grpc_port" in settings.model_fields_set
        address = listen_or_free(listen, host, settings.grpc_port, SETTING, is_set=is_set)
        signals = {name: signal for signal, name in SERVICES.items()}
        services = [calls.service(name, methods, self._rules(signals.get(name))) for name, methods in self.tables()]
        await self._server.start_described(services, FILES)
        return address

    def _rules(self, signal: Signal | None) -> Rules:
        return Rules(
            self._node.gate,
            error_mapping=status_with_details,
            refused=lambda error: self._intake.counts.refuse("grpc", error),
            requests=ReceivedInTurn(self._intake, self._settings, signal),
            holding=self._intake.budget.holding,
        )

    async def stop(self) -> None:
        """Refuse new calls; answer those in progress."""
        await self._server.stop()

    def tables(self) -> list[Service]:
        """Return the table of calls. A request is bytes here: `OtlpIntake` parses it, once its sender is known."""
        exports = [
            Service(name, [Method("Export", None, self._export(signal), BY_HANDLER)])
            for signal, name in SERVICES.items()
        ]
        return [*exports, Service(PROFILES_SERVICE, [Method("Export", None, _no_profiles, IDENTIFIED)])]

    def _export(self, signal: Signal) -> Callable[[Any], Awaitable[bytes]]:
        async def export(request: bytes) -> bytes:
            request = checked(request)
            self._intake.budget.keep(len(request))
            try:
                rejected = await self._intake.store(_asked(signal, who()), request)
            except StatusError as error:
                raise _of_owner(error.status) from None
            return rejected.as_protobuf()

        return export


class ReceivedInTurn:
    """Receives a request once its sender may send it and there is room for the largest one, within a limited time."""

    def __init__(self, intake: OtlpIntake, settings: OtlpSettings, signal: Signal | None) -> None:
        """`signal`: None for calls that store nothing."""
        self._intake = intake
        self._signal = signal
        self._size = settings.request_bytes_max
        self._seconds_max = settings.receive_ms_max / 1_000

    @contextlib.asynccontextmanager
    async def receiving(self, caller: Principal, peer: str) -> AsyncIterator[None]:
        if self._signal is not None:
            self._intake.check(_asked(self._signal, caller))
        await self._intake.budget.take(sender_of(caller, peer), self._size, self._seconds_max)
        try:
            async with asyncio.timeout(self._seconds_max):
                yield
        except TimeoutError:
            raise too_slow(self._seconds_max) from None


def status_with_details(error: FrazilError) -> ErrorStatus:
    found = grpc_status(error)
    return ErrorStatus(found.status, ((DETAILS, otlp_status(error).as_protobuf()),))


def _of_owner(status: OtlpStatus) -> Refused:
    """Pass the refusal of another broker on as it is."""
    found = ErrorStatus(grpc.StatusCode[status.name], ((DETAILS, status.as_protobuf()),))
    return Refused(FrazilError(status.message), lambda _: found)


async def _no_profiles(_: Any) -> bytes:
    raise NotSupported("Export of profiles", NO_PROFILES)


def _asked(signal: Signal, sender: Principal) -> Export:
    context = calling.get()
    has_certificate = certificate_of_call(context.auth_context()) is not None
    return export_of("grpc", signal, sender, context.invocation_metadata(), has_certificate=has_certificate)
