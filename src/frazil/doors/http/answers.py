"""Error responses: a JSON object with a code and a message, and the headers that say what to do."""

from __future__ import annotations

from fastapi.responses import JSONResponse

from frazil.core.errors import FrazilError, Unauthenticated
from frazil.doors.errors import status_of

RETRY_SECONDS_DEFAULT = 1


def error_answer(error: FrazilError) -> JSONResponse:
    status = status_of(error).http
    headers = {}
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    if status == 429:
        wait_ms = error.fields.get("retry_after_ms")
        wait_s = -(-wait_ms // 1_000) if isinstance(wait_ms, int) else RETRY_SECONDS_DEFAULT
        headers["Retry-After"] = str(max(1, wait_s))
    return JSONResponse(error.as_dict(), status, headers)
