"""Host and Origin checks of requests to the admin door."""

from __future__ import annotations

from collections.abc import Sequence

from frazil.doors.http.answers import error_answer
from frazil.doors.http_callers import CallerRules
from frazil.node.request_ids import App, Receive, Scope, Send


class CheckedCallers:
    """ASGI layer: 421 for a foreign `Host`, 403 for a change requested by another site's page.

    400 for a request with two lengths, and the connection ends.
    """

    def __init__(self, app: App, listening: str, allowed: Sequence[str], origins: Sequence[str] = ()) -> None:
        """`allowed` are names, `origins` are exact origins of pages that may request changes."""
        self._app = app
        self._rules = CallerRules(listening, allowed, origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._rules.refused(scope) if scope["type"] == "http" else None
        if refused is None:
            await self._app(scope, receive, send)
        else:
            answer = error_answer(refused)
            answer.headers["connection"] = "close"
            await answer(scope, receive, send)
