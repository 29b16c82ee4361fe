"""The caller of an HTTP request, by its credentials."""

from __future__ import annotations

from frazil.core.errors import TryLater
from frazil.core.principal import Principal
from frazil.doors.client_certificates import certificate_of_scope
from frazil.node.access.gate import AUTHORIZATION, Credentials, only_header
from frazil.node.node import Node
from frazil.node.request_ids import Scope


async def caller_of(scope: Scope, node: Node) -> Principal:
    """Return the caller; raises `Unauthenticated`, or `TryLater` while nobody can be identified."""
    gate = node.gate
    if not gate.is_on:
        if node.settings.security.enabled:  # the Node has not started: no caller can be identified yet
            raise TryLater("the server is starting, and knows no callers yet; try again")
        return await gate.identify(Credentials())
    name, expires_us = certificate_of_scope(scope) or (None, None)
    given = Credentials(only_header(_authorization(scope)), name, peer_of(scope), expires_us)
    return gate.known(given) or await gate.identify(given)


def peer_of(scope: Scope) -> str:
    client = scope.get("client")
    return "" if client is None else f"{client[0]}:{client[1]}"


def has_credentials(scope: Scope) -> bool:
    return bool(_authorization(scope)) or certificate_of_scope(scope) is not None


def _authorization(scope: Scope) -> list[bytes]:
    return [value for name, value in scope["headers"] if name == AUTHORIZATION.encode()]
