"""The size limit of a request body, which is held in memory before it is parsed."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_BYTES_MAX = 1024 * 1024
"""The largest expected body is a schema, of 256 KiB."""


class LimitBodies:
    def __init__(self, app: ASGIApp, bytes_max: int = BODY_BYTES_MAX) -> None:
        self._app = app
        self._bytes_max = bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "0")
        if length.isdecimal() and int(length) > self._bytes_max:
            await self._refuse(scope, receive, send)
            return
        read, refused = 0, False

        async def counted() -> Message:
            """End the body for its reader."""
            nonlocal read, refused
            message = await receive()
            read += len(message.get("body", b""))
            refused = refused or read > self._bytes_max
            return {"type": "http.disconnect"} if refused else message

        async def guarded_send(message: Message) -> None:
            if not refused:
                await send(message)
            elif message["type"] == "http.response.start":
                await self._refuse(scope, receive, send)

        await self._app(scope, counted, guarded_send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = f"the body has more than {self._bytes_max} bytes; send less"
        answer = JSONResponse({"error": "body_too_large", "message": message, "limit_bytes": self._bytes_max}, 413)
        await answer(scope, receive, send)
