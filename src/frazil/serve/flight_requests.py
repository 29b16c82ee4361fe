"""Ids of Flight calls, by Flight's own middleware: read from the headers of a call, sent with those of the answer."""

from __future__ import annotations

from typing import Any

import pyarrow.flight

from frazil.serve.request_ids import HEADER, PARENT, Request, begin

KEY = "request"


class FlightRequests(pyarrow.flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def start_call(self, info: object, headers: dict[str, list[Any]]) -> _FlightRequest:  # noqa: ARG002
        return _FlightRequest([(name, headers[name][0]) for name in (HEADER, PARENT) if headers.get(name)])


class _FlightRequest(pyarrow.flight.ServerMiddleware):  # type: ignore[misc]
    def __init__(self, headers: list[tuple[str, Any]]) -> None:
        self.request = begin(headers)

    def sending_headers(self) -> dict[str, str]:
        return {HEADER: self.request.id}


def request_of(context: Any) -> Request:
    """The request of a call; its thread may have forgotten what was set when the call began."""
    found = context.get_middleware(KEY)
    request = begin(()) if found is None else found.request
    assert isinstance(request, Request)
    return request
