"""gRPC's health service and reflection, within limits: everyone may call them, also without credentials.

A request beyond `REQUEST_BYTES_MAX` is refused, since it stays in memory as long as its call. Streams are limited in
number, those of reflection in time too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from frazil.core.errors import TooManyCalls
from frazil.doors.calls import CallLimit

REQUEST_BYTES_MAX = 1024
STREAMS_MAX = 64
REFLECTION_SECONDS_MAX = 60.0


class PublicHealth(health.aio.HealthServicer):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self._streams = CallLimit("watches of health", STREAMS_MAX)

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        await _check_size(request, context)
        return await super().Check(request, context)

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802 - gRPC's name
        await _check_size(request, context)
        async with _entered(self._streams, context):
            await super().Watch(request, context)


class PublicReflection(reflection.aio.ReflectionServicer):  # type: ignore[misc]
    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names)
        self._streams = CallLimit("streams of reflection", STREAMS_MAX)

    async def ServerReflectionInfo(  # noqa: N802 - gRPC's name
        self, request_iterator: AsyncIterator[Any], context: Any
    ) -> AsyncIterator[Any]:
        async with _entered(self._streams, context):
            try:
                async with asyncio.timeout(REFLECTION_SECONDS_MAX):
                    async for answer in super().ServerReflectionInfo(_small(request_iterator, context), context):
                        yield answer
            except TimeoutError:
                await context.abort(
                    grpc.StatusCode.DEADLINE_EXCEEDED, f"a stream may take {REFLECTION_SECONDS_MAX:.0f} s"
                )


async def _small(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
    async for request in requests:
        await _check_size(request, context)
        yield request


async def _check_size(request: Any, context: Any) -> None:
    if request.ByteSize() > REQUEST_BYTES_MAX:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"a request has at most {REQUEST_BYTES_MAX} bytes")


@contextlib.asynccontextmanager
async def _entered(limit: CallLimit, context: Any) -> AsyncIterator[None]:
    try:
        limit.enter()
    except TooManyCalls as error:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, error.message)
    try:
        yield
    finally:
        limit.leave()
