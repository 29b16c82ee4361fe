"""Danube's `Authenticate`: clients up to version 0.3 exchange an API key for a token."""

from __future__ import annotations

from typing import Any

from frazil.core.errors import NotSupported, Unauthenticated
from frazil.core.principal import ANONYMOUS
from frazil.doors.admission import PUBLIC
from frazil.doors.calls import Method, Service, calling
from frazil.doors.danube.proto import DanubeAuth_pb2 as pb
from frazil.node.node import Node

API_KEY_LENGTH_MAX = 1024


def authentication(node: Node) -> Service:
    """Return the table of the service. Everyone may call it: wrong keys are limited where keys are verified."""

    async def authenticate(request: Any) -> Any:
        if not node.gate.is_on:
            raise NotSupported("Authenticate", "security is off, and no call needs a token")
        access = node.access_parts(ANONYMOUS)
        try:
            if len(request.api_key) > API_KEY_LENGTH_MAX:
                raise Unauthenticated
            return pb.AuthResponse(token=await access.danube.issue(request.api_key))
        except Unauthenticated:
            access.audit.record(ANONYMOUS, "identify", "", False, calling.get().peer(), "a wrong API key")
            raise

    method = Method("Authenticate", pb.AuthRequest, authenticate, PUBLIC, pb.AuthResponse)
    return Service("danube.AuthService", [method])
