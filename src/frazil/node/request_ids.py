"""An id for each external call: the caller's own if valid, else a generated one; in log lines and in the answer.

It is a context variable, so that code that logs for a call need not receive it. An id is generated on first use: a call
without log lines costs none.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextvars import ContextVar
from typing import Any

HEADER = "x-request-id"
PARENT = "traceparent"

_SANE = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}", re.ASCII)
_current: ContextVar[Request | None] = ContextVar("request", default=None)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Request:
    __slots__ = ("_id", "call", "is_given", "peer", "trace_parent")

    def __init__(self, given: str | None = None, trace_parent: str | None = None) -> None:
        self.is_given = given is not None and _SANE.fullmatch(given) is not None
        self._id = given if self.is_given else None
        self.trace_parent = trace_parent
        self.call = ""
        """The gRPC method or the HTTP route, once it is known. Nothing in it is the caller's own text."""
        self.peer = ""
        """The caller's address, once its rights were checked."""

    @property
    def id(self) -> str:
        if self._id is None:
            self._id = secrets.token_hex(8)
        return self._id


def begin(headers: Iterable[tuple[str, str | bytes]]) -> Request:
    """Set the call that this task or thread works on. Header names are in lower case."""
    given = parent = None
    for name, value in headers:
        if name == HEADER:
            given = value if isinstance(value, str) else None
        elif name == PARENT:
            parent = value if isinstance(value, str) else None
    request = Request(given, parent)
    _current.set(request)
    return request


def current() -> Request | None:
    return _current.get()


def peer_of_call() -> str:
    """Return the address of the current caller, for the audit log; empty if it is not known."""
    request = current()
    return "" if request is None else request.peer


class RequestIds:
    """The outermost ASGI layer, so that answers to internal errors have the id too."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = begin((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"])

        async def answer(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (HEADER.encode(), request.id.encode())]
            await send(message)

        await self._app(scope, receive, answer)
