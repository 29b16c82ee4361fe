"""Response headers against misuse by browsers, and the answers to pages of other origins."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from frazil.node.request_ids import HEADER, App, Receive, Scope, Send

ALWAYS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
HSTS = "max-age=31536000"
PREFLIGHT_SECONDS_MAX = 600


def safe_headers(scope: Scope) -> dict[str, str]:
    """Return the headers of every answer. Nothing here is a page, so a browser may load nothing with it."""
    found = dict(ALWAYS)
    if str(scope.get("path", "")).startswith("/v1"):
        found["cache-control"] = "no-store"
    if scope.get("scheme") == "https":
        found["strict-transport-security"] = HSTS
    return found


class SafeHeaders:
    """ASGI layer that adds the headers."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        added = [(name.encode(), value.encode()) for name, value in safe_headers(scope).items()]

        async def answer(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *added]  # type: ignore[misc]
            await send(message)

        await self._app(scope, receive, answer)


def allow_origins(app: FastAPI, origins: Sequence[str]) -> None:
    """Let pages of these origins call with a token of their own. Browsers send them no stored credentials."""
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=["authorization", "content-type", HEADER],
            expose_headers=[HEADER, "retry-after", "www-authenticate"],
            max_age=PREFLIGHT_SECONDS_MAX,
        )
