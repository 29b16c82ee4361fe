"""Who calls, and what the route needs: decided before a body is read and before a handler runs.

    Identified   ASGI layer: the caller by its credentials, and its quota of requests; 401 and 429
    needs        dependency of a route: the rights that it needs, from its path, query and body; 403
    Who, Peer    parameters of a handler: the caller and its address, for the Node

Every route declares what it needs, or is in `PUBLIC`: `check_declared` refuses an app with any other.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, Request, params
from fastapi.routing import iter_route_contexts

from frazil.core.access import Action, Resource, Right
from frazil.core.errors import FrazilError, Unauthenticated
from frazil.core.principal import Principal
from frazil.doors.http.answers import error_answer
from frazil.doors.http_identity import caller_of, has_credentials, peer_of
from frazil.node.access.gate import Gate
from frazil.node.node import Node
from frazil.node.request_ids import App, Receive, Scope, Send, current

READY = "/health/ready"
PUBLIC = frozenset({"/health/live", READY, "/openapi.json"})
"""Paths that need no credentials. `/health/ready` shows more to callers that may describe the server."""

_WHO, _PEER, _DECLARED = "frazil.who", "frazil.peer", "frazil_needs"

Item = TypeVar("Item")
Rights = Callable[..., Coroutine[Any, Any, Sequence[Right]]]


class Identified:
    """ASGI layer: puts the caller into the scope; None for an unknown caller of a public path."""

    def __init__(self, app: App, node: Node) -> None:
        self._app = app
        self._node = node

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)  # no route takes it: each needs a request
            return
        scope[_PEER] = peer_of(scope)
        if scope["path"] in PUBLIC:
            scope[_WHO] = await self._who_if_known(scope)
        else:
            try:
                scope[_WHO] = who = await caller_of(scope, self._node)
                self._node.gate.request(who)
            except FrazilError as error:
                await error_answer(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _who_if_known(self, scope: Scope) -> Principal | None:
        """Return the caller of a public path. Probes have no credentials: they are no failed attempts."""
        if self._node.gate.is_on and (scope["path"] != READY or not has_credentials(scope)):
            return None
        try:
            return await caller_of(scope, self._node)
        except FrazilError:
            return None


# --- in handlers


async def _caller(request: Request) -> Principal:
    who: Principal | None = request.scope.get(_WHO)
    if who is None:
        raise Unauthenticated
    return who


async def _peer(request: Request) -> str:
    found: str = request.scope[_PEER]
    return found


Who = Annotated[Principal, Depends(_caller)]
Peer = Annotated[str, Depends(_peer)]
"""The caller's address, for the audit log."""


def known_caller(request: Request) -> Principal | None:
    """Return the caller of a public path, if it is known."""
    return request.scope.get(_WHO)


def shown(gate: Gate, who: Principal, items: Iterable[Item], resource: Callable[[Item], Resource]) -> Iterable[Item]:
    """Return those that the caller may know of. Filter before paging: a page is full, and names nothing hidden."""
    if not gate.is_on:
        return items
    return (one for one in items if gate.allows(who, Action.DESCRIBE, resource(one)))


# --- what a route needs


async def _nothing() -> Sequence[Right]:
    return ()


def needs(rights: Rights = _nothing) -> params.Depends:
    """Declare that a route needs all these rights. `rights` is a dependency: it takes parameters of the route.

    Without rights, every identified caller may call: a list that is filtered, or what all clients must know.
    """

    async def check(request: Request, who: Who, wanted: Sequence[Right] = Depends(rights)) -> None:
        _name_call(request)
        _gate(request).check_all(who, wanted, request.scope[_PEER])

    return _declared(check)


def needs_any(rights: Rights) -> params.Depends:
    """Declare that a route needs one of these rights, if there are any. Without one, the first is refused."""

    async def check(request: Request, who: Who, wanted: Sequence[Right] = Depends(rights)) -> None:
        _name_call(request)
        gate = _gate(request)
        given = [one for one in wanted if gate.allows(who, *one)]
        gate.check_all(who, (given or wanted)[:1], request.scope[_PEER])

    return _declared(check)


def check_declared(app: FastAPI) -> None:
    """Raise if a route neither declares what it needs nor is public: it would be open to everybody."""
    for route in iter_route_contexts(app.routes):
        declared = any(hasattr(one.dependency, _DECLARED) for one in getattr(route, "dependencies", ()))
        if not declared and route.path not in PUBLIC:
            raise RuntimeError(f"{route.path} declares no rights; add `needs(...)` to its dependencies")


def _declared(check: Callable[..., Coroutine[Any, Any, None]]) -> params.Depends:
    setattr(check, _DECLARED, True)
    found: params.Depends = Depends(check)
    return found


def _name_call(request: Request) -> None:
    """Name the call by its route: a path may contain anything, also a key by mistake."""
    asked = current()
    if asked is not None:
        asked.call = f"{request.method} {getattr(request.scope.get('route'), 'path', '')}"
        asked.peer = request.scope[_PEER]


def _gate(request: Request) -> Gate:
    """Read it at each request: the Node replaces it when it starts."""
    node: Node = request.app.state.node
    return node.gate
