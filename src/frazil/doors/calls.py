"""Tables of gRPC calls: a door lists its methods; this module implements what all calls share.

    Method(name, request, handler, needs)                `handler(request)` returns the response
    Method(…, streams=Streams.ANSWERS)                   `handler(request, context)` writes the responses
    Method(…, streams=Streams.BOTH)                      `handler(context)` reads the requests and writes the responses

Each call gets its request id, is admitted by its `needs` (see `frazil.doors.admission`), counts against the limit of
its table, and ends with the status of its error from the table in `frazil.doors.errors`. A handler takes and returns
messages, and raises errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import grpc
import grpc.aio

from frazil.core.errors import FrazilError, InvalidInput, TooManyCalls
from frazil.doors.admission import (
    Needs,
    PublicReads,
    Receiving,
    Rights,
    admit,
    has_lost_rights,
    is_known,
    reading,
)
from frazil.doors.errors import INTERNAL_MESSAGE, status_of
from frazil.node.access.gate import Gate
from frazil.node.request_ids import HEADER, begin, current

WRITE_SECONDS_MAX = 30.0
"""So long may a client take to read a single answer."""
ABORT_SECONDS_MAX = 0.5
"""The status of a call waits behind what its client does not read. If its rights are gone, its task waits this long."""

INTERRUPTED_MESSAGE = "the call was interrupted at this server; whether it had an effect is not known; try again"

_log = logging.getLogger("frazil.serve")

Context = Any
"""gRPC's context. It is generic only for type checkers with gRPC's stubs."""
Answer = Callable[[Any], Awaitable[Any]]

calling: ContextVar[Context] = ContextVar("calling")
"""The current call."""


class Streams(enum.Enum):
    """Which sides of a call are streams."""

    NONE = enum.auto()
    ANSWERS = enum.auto()
    BOTH = enum.auto()


class ErrorStatus(NamedTuple):
    """The status of a call that ends with an error, and its trailing metadata."""

    status: grpc.StatusCode
    trailers: tuple[tuple[str, str | bytes], ...] = ()


class _Abandoned(asyncio.CancelledError):
    """The client does not read its answer, and gets no status either."""


ErrorMapping = Callable[[FrazilError], ErrorStatus]


def grpc_status(error: FrazilError) -> ErrorStatus:
    """Map an error to its gRPC status. Internal errors are also logged."""
    status = grpc.StatusCode[status_of(error).grpc]
    if status is grpc.StatusCode.INTERNAL:
        _log.error("%s", error)
    return ErrorStatus(status)


class Refused(Exception):
    """An error with another mapping than that of its table."""

    def __init__(self, error: FrazilError, error_mapping: ErrorMapping) -> None:
        super().__init__(error.message)
        self.error = error
        self.error_mapping = error_mapping


class CallLimit:
    """A limit on concurrent calls. Used on one event loop."""

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


class Method(NamedTuple):
    """One method. `request` is a message class, or a function that parses bytes and returns errors.

    `needs` says who may call it. The handler returns messages of class `answer`, else bytes. `limit` and
    `error_mapping` override the rules.
    """

    name: str
    request: Any
    handler: Callable[..., Awaitable[Any]]
    needs: Rights | Needs
    answer: Any = None
    streams: Streams = Streams.NONE
    limit: CallLimit | None = None
    error_mapping: ErrorMapping | None = None


@dataclass(frozen=True)
class Rules:
    """The rules for all methods of a table. `refused` is called with each error that ends a call."""

    gate: Gate
    """The Node's, once it has started: before that it is open."""
    limit: CallLimit = UNLIMITED
    error_mapping: ErrorMapping = grpc_status
    refused: Callable[[FrazilError], None] = lambda _: None
    requests: Receiving | None = None
    """Of requests of known callers too. Without, gRPC receives them before anything is called, which is faster."""
    holding: Callable[[], AbstractContextManager[object]] | None = None
    """Entered for the time of each call, also while security is off: `requests` apply then too."""


class Service(NamedTuple):
    """A table: the methods of one gRPC service. Doors return theirs, so that a test can go through all calls."""

    name: str
    methods: Sequence[Method]


@dataclass(frozen=True)
class _Call:
    """What all calls of one method share. `gate` is None while security is off."""

    limit: CallLimit
    error_mapping: ErrorMapping
    refused: Callable[[FrazilError], None]
    name: str
    gate: Gate | None
    needs: Rights | Needs


def service(name: str, methods: Sequence[Method], rules: Rules) -> Any:
    """Return the table as a gRPC handler."""
    if rules.gate.is_on or rules.holding is not None:
        return IdentifiedService(name, methods, rules)
    return grpc.method_handlers_generic_handler(name, {method.name: _handler(method, rules) for method in methods})


def _handler(method: Method, rules: Rules) -> Any:
    reads = reader(method.request) if isinstance(method.request, type) else method.request
    writes = None if method.answer is None else method.answer.SerializeToString
    call = _Call(
        method.limit or rules.limit,
        method.error_mapping or rules.error_mapping,
        rules.refused,
        method.name,
        rules.gate if rules.gate.is_on else None,
        method.needs,
    )
    if method.streams is Streams.NONE:
        return grpc.unary_unary_rpc_method_handler(_unary(method.handler, call), reads, writes)
    if method.streams is Streams.ANSWERS:
        return grpc.unary_stream_rpc_method_handler(_answers(method.handler, call), reads, writes)
    return grpc.stream_stream_rpc_method_handler(_both(method.handler, call), reads, writes)


class IdentifiedService(grpc.GenericRpcHandler):
    """The handlers of a table, which receive the request of an unknown caller only once it is identified.

    With `Rules.requests` so they do for all callers, each within limits.

    gRPC receives the request of a unary call before it calls the handler. So a call whose credentials were not verified
    lately gets a handler of streams: it identifies the caller, then receives the request and goes on as usual.
    """

    def __init__(self, name: str, methods: Sequence[Method], rules: Rules) -> None:
        self._gate = rules.gate
        self._is_always_careful = rules.requests is not None
        self._handlers = {f"/{name}/{method.name}": _handler(method, rules) for method in methods}
        reads = PublicReads()
        self._careful = {
            path: _identified_first(handler, method, rules, reads)
            for (path, handler), method in zip(self._handlers.items(), methods, strict=True)
            if not handler.request_streaming
        }

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method
        careful = self._careful.get(method)
        if careful is None:
            return self._handlers.get(method)
        if not self._is_always_careful and is_known(self._gate, handler_call_details.invocation_metadata):
            return self._handlers.get(method)
        return careful


def _identified_first(handler: Any, method: Method, rules: Rules, reads: PublicReads) -> Any:
    mapping = method.error_mapping or rules.error_mapping
    own = _Call(rules.limit, mapping, rules.refused, method.name, rules.gate, method.needs)
    holding = rules.holding or nullcontext

    async def call(_: Any, context: Context) -> None:
        with holding():
            await answer(context)

    async def answer(context: Context) -> None:
        begin(context.invocation_metadata()).call = method.name
        calling.set(context)
        try:
            async with reading(rules.gate, context, method.needs, reads, rules.requests):
                message = await context.read()
        except FrazilError as error:
            await _refuse(context, error, own, mapping)
        if message is grpc.aio.EOF:
            message = InvalidInput("the request is missing", field="request")
        if handler.response_streaming:
            await handler.unary_stream(message, context)
        else:
            await write_in_time(context, await handler.unary_unary(message, context))

    return grpc.stream_stream_rpc_method_handler(call, handler.request_deserializer, handler.response_serializer)


def _unary(handler: Answer, rules: _Call) -> Any:
    limit, gate = rules.limit, rules.gate

    async def call(message: Any, context: Context) -> Any:
        asked = begin(context.invocation_metadata())
        asked.call = rules.name
        calling.set(context)
        if asked.is_given:
            context.set_trailing_metadata(((HEADER, asked.id),))
        try:
            if gate is not None:
                await admit(gate, context, rules.needs, message)
            if isinstance(message, InvalidInput):
                raise message
            limit.enter()
            try:
                return await handler(message)
            finally:
                limit.leave()
        except FrazilError as error:
            await _refuse(context, error, rules, rules.error_mapping)
        except Refused as refused:
            await _refuse(context, refused.error, rules, refused.error_mapping)
        except asyncio.CancelledError as cancelled:
            await _interrupted(context, rules, cancelled)
        except Exception:  # noqa: BLE001 - logged; the client learns no details
            await _fail(context, rules)

    return call


def _answers(handler: Callable[[Any, Context], Awaitable[None]], rules: _Call) -> Any:
    async def call(message: Any, context: Context) -> None:
        await _streamed(lambda: handler(checked(message), context), context, rules, message)

    return call


def _both(handler: Callable[[Context], Awaitable[None]], rules: _Call) -> Any:
    async def call(_: Any, context: Context) -> None:
        await _streamed(lambda: handler(context), context, rules)

    return call


async def _streamed(work: Callable[[], Awaitable[None]], context: Context, rules: _Call, message: Any = None) -> None:
    """Run one call. A client that has disconnected gets no answer, and causes no log line."""
    asked = begin(context.invocation_metadata())
    asked.call = rules.name
    calling.set(context)
    try:
        try:
            if rules.gate is not None:
                await admit(rules.gate, context, rules.needs, message)
            if asked.is_given:
                await context.send_initial_metadata(((HEADER, asked.id),))
            rules.limit.enter()
            try:
                await work()
            finally:
                rules.limit.leave()
        except FrazilError as error:
            await _refuse(context, error, rules, rules.error_mapping)
        except Refused as refused:
            await _refuse(context, refused.error, rules, refused.error_mapping)
        except grpc.aio.BaseError:
            raise
        except asyncio.CancelledError as cancelled:
            await _interrupted(context, rules, cancelled)
        except Exception:  # noqa: BLE001 - logged; the client learns no details
            await _fail(context, rules)
    except grpc.aio.AbortError:
        raise
    except grpc.aio.BaseError:
        raise asyncio.CancelledError from None


async def write_in_time(context: Context, message: Any) -> None:
    """Write an answer that no stream limit covers. A client that does not read it loses its call.

    The limit passes in two halves: a process that was paused finds the first one over when it goes on, and the client
    still has the second one.
    """
    loop, half_seconds = asyncio.get_running_loop(), WRITE_SECONDS_MAX / 2
    try:
        async with asyncio.timeout(None) as limit:
            half = loop.call_later(half_seconds, lambda: limit.reschedule(loop.time() + half_seconds))
            try:
                await context.write(message)
            finally:
                half.cancel()
    except TimeoutError:
        raise _Abandoned from None


async def send_headers(context: Context) -> None:
    """Send the headers of a stream before its first response, so that the client knows that the call was accepted."""
    asked = current()
    if asked is None or not asked.is_given:  # otherwise its id was sent already
        await context.send_initial_metadata(())


async def _refuse(context: Context, error: FrazilError, rules: _Call, error_mapping: ErrorMapping) -> NoReturn:
    rules.refused(error)
    ended = error_mapping(error)
    await _abort(context, ended.status, error.message, ended.trailers)


async def _fail(context: Context, rules: _Call) -> NoReturn:
    """End a call after an unexpected error: the client learns no details."""
    _log.exception("%s failed", rules.name)
    rules.refused(FrazilError(INTERNAL_MESSAGE))
    await _abort(context, grpc.StatusCode.INTERNAL, INTERNAL_MESSAGE)


async def _interrupted(context: Context, rules: _Call, cancelled: asyncio.CancelledError) -> NoReturn:
    """End a call in which a `CancelledError` was raised.

    If nobody has cancelled its task, neither its client nor the server's end, then something was cancelled for which it
    waited, such as the work of a topic that moved. gRPC would send no status, and the client would wait for it.
    """
    task = asyncio.current_task()
    if isinstance(cancelled, _Abandoned) or (task is not None and task.cancelling()):
        raise cancelled
    _log.warning("%s was interrupted: what it waited for was cancelled", rules.name, exc_info=cancelled)
    rules.refused(FrazilError(INTERRUPTED_MESSAGE))
    await _abort(context, grpc.StatusCode.UNAVAILABLE, INTERRUPTED_MESSAGE)


async def _abort(context: Context, status: grpc.StatusCode, message: str, trailers: tuple[Any, ...] = ()) -> NoReturn:
    """End a call. One that has ended meanwhile, as gRPC itself refused its message, causes no log line."""
    asked = current()
    abort = context.abort(status, message, trailers if asked is None else (*trailers, (HEADER, asked.id)))
    try:
        if has_lost_rights():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ABORT_SECONDS_MAX):
                    await abort
        else:
            await abort
    except grpc.aio.AbortError:
        raise
    except grpc.aio.BaseError:
        raise asyncio.CancelledError from None
    raise asyncio.CancelledError  # abort never returns


# --- requests


def reader(kind: Any) -> Callable[[bytes], Any]:
    """Return a parser that returns `InvalidInput` for a malformed request: gRPC would report a server failure."""

    def read(data: bytes) -> Any:
        try:
            return kind.FromString(data)
        except Exception:  # noqa: BLE001 - DecodeError, or any error of Protobuf's C code on hostile bytes
            return InvalidInput(f"the request is not a valid {kind.DESCRIPTOR.name}", field="request")

    return read


def checked(message: Any) -> Any:
    """Return a parsed request, or raise its parse error."""
    if isinstance(message, InvalidInput):
        raise message
    return message
