"""Error responses: a JSON object with a code and a message, and the headers that say what to do."""

from __future__ import annotations

from urllib.parse import quote

from fastapi.responses import JSONResponse

from frazil.core.cluster import http_address
from frazil.core.errors import FrazilError, NotOwner, Unauthenticated
from frazil.doors.errors import status_of
from frazil.node.request_ids import Scope

RETRY_SECONDS_DEFAULT = 1
NO_ADDRESS, TEMPORARY_REDIRECT = 503, 307


def error_answer(error: FrazilError, scope: Scope | None = None) -> JSONResponse:
    """With the `scope` of the request, a call for a topic of another broker is redirected to its owner."""
    status = status_of(error).http
    headers = {}
    if isinstance(error, NotOwner):
        owner = http_address(error.fields["addresses"])
        if scope is None or owner is None:
            status = NO_ADDRESS
        else:
            headers["Location"] = owner.rstrip("/") + _path_of(scope)
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    wait_ms = error.fields.get("retry_after_ms")
    if status == 429 or (wait_ms is not None and status in (NO_ADDRESS, TEMPORARY_REDIRECT)):
        wait_s = -(-wait_ms // 1_000) if isinstance(wait_ms, int) else RETRY_SECONDS_DEFAULT
        headers["Retry-After"] = str(max(1, wait_s))
    return JSONResponse(error.as_dict(), status, headers)


def _path_of(scope: Scope) -> str:
    """Return the path and query as they were sent: names in a path may have encoded slashes."""
    raw: bytes = scope.get("raw_path") or quote(str(scope["path"])).encode()
    query: bytes = scope.get("query_string", b"")
    path = raw.split(b"?")[0].decode("latin-1")
    return f"{path}?{query.decode('latin-1')}" if query else path
