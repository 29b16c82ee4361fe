"""What the gRPC services of the broker share: the server, the limit on calls, and errors as statuses.

Every error becomes a status that Danube's clients understand. What they answer with a retry (UNAVAILABLE,
RESOURCE_EXHAUSTED) is used for what a retry can mend.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from frazil.broker.counts import BrokerCounts
from frazil.core.errors import (
    Closed,
    DiskBudgetExceeded,
    DiskFull,
    FrazilError,
    IncompatibleSchema,
    InvalidInput,
    ListenFailed,
    LogFailed,
    MetadataUnavailable,
    NamespaceExists,
    NamespaceInUse,
    NamespaceNotFound,
    NotInstalled,
    NotSupported,
    Overloaded,
    SchemaNotFound,
    SubjectMismatch,
    SubscriptionNotFound,
    SubscriptionTaken,
    TooManyCalls,
    TopicDiffers,
    TopicExists,
    TopicInUse,
    TopicNotFound,
    TryLater,
)
from frazil.serve.request_ids import HEADER, begin, current

STOP_SECONDS_MAX = 5.0

_STATUSES: tuple[tuple[type[FrazilError], grpc.StatusCode], ...] = (
    (SubjectMismatch, grpc.StatusCode.FAILED_PRECONDITION),
    (IncompatibleSchema, grpc.StatusCode.FAILED_PRECONDITION),
    (SchemaNotFound, grpc.StatusCode.NOT_FOUND),
    (InvalidInput, grpc.StatusCode.INVALID_ARGUMENT),
    (TopicNotFound, grpc.StatusCode.NOT_FOUND),
    (SubscriptionNotFound, grpc.StatusCode.NOT_FOUND),
    (NamespaceNotFound, grpc.StatusCode.NOT_FOUND),
    (TopicExists, grpc.StatusCode.ALREADY_EXISTS),
    (NamespaceExists, grpc.StatusCode.ALREADY_EXISTS),
    (TopicDiffers, grpc.StatusCode.FAILED_PRECONDITION),
    (TopicInUse, grpc.StatusCode.FAILED_PRECONDITION),
    (NamespaceInUse, grpc.StatusCode.FAILED_PRECONDITION),
    (NotSupported, grpc.StatusCode.UNIMPLEMENTED),
    (NotInstalled, grpc.StatusCode.UNIMPLEMENTED),
    (SubscriptionTaken, grpc.StatusCode.PERMISSION_DENIED),
    (Overloaded, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (TooManyCalls, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (DiskFull, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (DiskBudgetExceeded, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (TryLater, grpc.StatusCode.UNAVAILABLE),
    (LogFailed, grpc.StatusCode.UNAVAILABLE),
    (MetadataUnavailable, grpc.StatusCode.UNAVAILABLE),
    (Closed, grpc.StatusCode.UNAVAILABLE),
)

_log = logging.getLogger("frazil.serve")

Context = Any
"""gRPC's, which is generic only for type checkers that have its stubs."""
Answer = Callable[[Any], Awaitable[Any]]

calling: ContextVar[Context] = ContextVar("calling")
"""The call that is being answered."""


class GrpcServer:
    """A server with health and reflection, on one event loop."""

    def __init__(self, message_bytes_max: int, connections_max: int) -> None:
        self._server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_allowed_incoming_connections", connections_max),
                ("grpc.max_receive_message_length", message_bytes_max),
                ("grpc.max_send_message_length", -1),
                ("grpc.keepalive_time_ms", 20_000),
                ("grpc.keepalive_timeout_ms", 10_000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
            ]
        )
        self._health = health.aio.HealthServicer()

    async def start(self, handlers: tuple[Any, ...], files: tuple[Any, ...]) -> None:
        """`files` are descriptors of the services, for reflection. Call `listen` first."""
        self._server.add_generic_rpc_handlers(handlers)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = [service.full_name for file in files for service in file.services_by_name.values()]
        reflection.enable_server_reflection([*names, health.SERVICE_NAME, reflection.SERVICE_NAME], self._server)
        await self._server.start()
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)

    def listen(self, host: str, port: int, setting: str) -> str:
        """The address, as host:port. `ListenFailed` names the setting."""
        shown = f"[{host}]" if ":" in host else host
        try:
            port = self._server.add_insecure_port(f"{shown}:{port}")
        except RuntimeError as error:
            raise ListenFailed(host, port, str(error).splitlines()[0], setting) from None
        return f"{shown}:{port}"

    async def stop(self) -> None:
        """No new calls; those on their way are answered."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(STOP_SECONDS_MAX)


def check_free(host: str, port: int, setting: str) -> None:
    """`ListenFailed` if the port is taken; gRPC itself would also write a line of its own on stderr."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise ListenFailed(host, port, error.strerror or str(error), setting) from None


class CallLimit:
    """How many calls may be under way at once. Used on one event loop."""

    __slots__ = ("_limit", "_setting", "_under_way")

    def __init__(self, setting: str, limit: int) -> None:
        self._setting = setting
        self._limit = limit
        self._under_way = 0

    def enter(self) -> None:
        if self._under_way >= self._limit:
            raise TooManyCalls(self._setting, self._limit)
        self._under_way += 1

    def leave(self) -> None:
        self._under_way -= 1


UNLIMITED = CallLimit("", sys.maxsize)


def unary(answer: Answer, request: Any, counts: BrokerCounts, limit: CallLimit) -> Any:
    async def call(message: Any, context: Context) -> Any:
        asked = begin(context.invocation_metadata())
        calling.set(context)
        if asked.is_given:
            context.set_trailing_metadata(((HEADER, asked.id),))
        try:
            if isinstance(message, InvalidInput):
                raise message
            limit.enter()
            try:
                return await answer(message)
            finally:
                limit.leave()
        except FrazilError as error:
            await refuse(context, error, counts)
        except Exception:  # noqa: BLE001 - whatever it was is for our log, not for a client
            _log.exception("a call failed")
            await refuse(context, FrazilError("an error of Frazil's own; its log says more"), counts, logged=True)

    return grpc.unary_unary_rpc_method_handler(
        call, request_deserializer=reader(request), response_serializer=lambda made: made.SerializeToString()
    )


def reader(kind: Any) -> Callable[[bytes], Any]:
    """What can't be read is a bad call and no failure of the server, as gRPC would take it for."""

    def read(data: bytes) -> Any:
        try:
            return kind.FromString(data)
        except DecodeError:
            return InvalidInput(f"the request is no {kind.DESCRIPTOR.name}", field="request")

    return read


async def refuse(context: Context, error: FrazilError, counts: BrokerCounts, *, logged: bool = False) -> NoReturn:
    counts.refused[error.code] += 1
    code = next((code for kind, code in _STATUSES if isinstance(error, kind)), grpc.StatusCode.INTERNAL)
    if code is grpc.StatusCode.INTERNAL and not logged:
        _log.error("%s", error)
    asked = current()
    await context.abort(code, error.message, () if asked is None else ((HEADER, asked.id),))
    raise asyncio.CancelledError  # abort never returns
