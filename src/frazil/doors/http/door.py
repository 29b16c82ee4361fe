"""The HTTP server: health, metrics and the admin API. Every error is a JSON object with a code and a message."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException
from starlette.routing import Match

import frazil
from frazil.core.errors import FrazilError, InvalidInput
from frazil.core.principal import ANONYMOUS
from frazil.doors.errors import INTERNAL_MESSAGE, status_of
from frazil.doors.http.access import READY, Identified, check_declared, known_caller, needs_any
from frazil.doors.http.admin import add_admin
from frazil.doors.http.admin.rights import STATE_OF_SERVER, state_of_server
from frazil.doors.http.answers import error_answer
from frazil.doors.http.callers import CheckedCallers
from frazil.doors.http.headers import SafeHeaders, allow_origins, safe_headers
from frazil.doors.metrics.collectors import make_registry
from frazil.node.health.readiness import Readiness
from frazil.node.node import Node

PROBLEMS_MAX = 10

_log = logging.getLogger("frazil.serve")


def make_app(node: Node, collectors: Iterable[Collector] = ()) -> FastAPI:
    """`collectors` are the metrics of other doors. Each layer that is added is called before those above it."""
    app = FastAPI(title="Frazil", version=frazil.__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.node = node
    app.add_middleware(Identified, node=node)
    _answer_errors(app)
    _add_health(app, node, node.health(ANONYMOUS))
    add_admin(app, node)
    http = node.settings.http
    allow_origins(app, http.cors_origins)
    advertised = urlsplit(f"//{http.advertised or ''}").hostname  # other brokers redirect callers to this name
    names = [*http.allowed_hosts, *([advertised] if advertised else [])]
    app.add_middleware(CheckedCallers, listening=http.host, allowed=names, origins=http.cors_origins)
    app.add_middleware(SafeHeaders)
    registry = make_registry(node, collectors)
    if node.own_telemetry is not None:
        node.own_telemetry.collect = registry.collect

    @app.get("/metrics", dependencies=[needs_any(state_of_server)])
    def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    check_declared(app)
    return app


def _add_health(app: FastAPI, node: Node, readiness: Readiness) -> None:
    @app.get("/health/live")
    async def live() -> dict[str, str]:
        """The process answers; this says nothing about the topics."""
        return {"status": "live"}

    @app.get(READY)
    def ready(request: Request) -> JSONResponse:
        """Ready once all topics were opened and none is broken or misses its objective. Other topics work even if not.

        `warnings` are problems that leave it ready: publishing works while rows wait for their tables. With security,
        callers that may neither describe nor operate the server get the status alone.
        """
        opening, who = readiness.opening, known_caller(request)
        reasons = readiness.problems()
        status = "degraded" if reasons else "ready" if opening.done else "opening"
        code = 200 if status == "ready" else 503
        if who is None or not any(node.gate.allows(who, *right) for right in STATE_OF_SERVER):
            return JSONResponse({"status": status}, code)
        content: dict[str, Any] = {"opened": opening.opened, "topics": opening.total}
        content["warnings"] = readiness.warnings()
        if status != "ready":
            content["reasons"] = reasons
        return JSONResponse({"status": status, **content}, code)


def _answer_errors(app: FastAPI) -> None:
    @app.exception_handler(FrazilError)
    def known(request: Request, error: FrazilError) -> JSONResponse:
        status = status_of(error).http
        if status == 500:
            _log.error("%s %s: %s", request.method, request.url.path, error, extra={"code": error.code})
        return error_answer(error, request.scope)

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        wrong = [(_field(problem["loc"]), problem["msg"]) for problem in error.errors()[:PROBLEMS_MAX]]
        said = "; ".join(f"{field}: {message}" for field, message in wrong)
        return JSONResponse(InvalidInput(said, field=wrong[0][0]).as_dict(), 400)

    @app.exception_handler(HTTPException)
    def plain(request: Request, error: HTTPException) -> JSONResponse:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
        headers = _allowed(app, request) if error.status_code == 405 else error.headers
        return JSONResponse({"error": code, "message": str(error.detail)}, error.status_code, headers)

    @app.exception_handler(Exception)
    def unknown(request: Request, error: Exception) -> JSONResponse:
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        # answered outside of all layers
        return JSONResponse({"error": "internal", "message": INTERNAL_MESSAGE}, 500, safe_headers(request.scope))


def _allowed(app: FastAPI, request: Request) -> dict[str, str]:
    """Return all methods of a path; by default Starlette returns those of the first matching route."""
    fits = [route for route in app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return {"Allow": ", ".join(sorted({method for route in fits for method in getattr(route, "methods", ())}))}


def _field(place: Sequence[str | int]) -> str:
    """Return the part of a call, without FastAPI's prefix; a body that is not JSON has no parts."""
    named = [str(one) for one in place[1:] if not str(one).isdecimal()]
    return ".".join(named) or str(place[0])
