"""The door over HTTP: health, metrics, and all that `frazil.serve.admin` adds. Every error is a JSON object with a code
and a message."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException
from starlette.routing import Match

import frazil
from frazil.core.clock import SystemClock
from frazil.core.errors import (
    BrokerOff,
    Closed,
    FrazilError,
    IncompatibleSchema,
    InvalidInput,
    JobNotFound,
    LakeUnavailable,
    LogFailed,
    MetadataUnavailable,
    NamespaceExists,
    NamespaceInUse,
    NamespaceNotFound,
    NotInstalled,
    OffsetOutOfRange,
    SchemaNotFound,
    SubjectMismatch,
    SubscriptionNotFound,
    SubscriptionTaken,
    TableNotFound,
    TableRefused,
    TooManyJobs,
    TopicDiffers,
    TopicExists,
    TopicInUse,
    TopicNotFound,
    TryLater,
)
from frazil.log.storage import Storage
from frazil.serve.admin import add_admin
from frazil.serve.admin.parts import AdminJobs, AdminParts, BrokerParts
from frazil.serve.callers import CheckedCallers
from frazil.serve.metrics import make_registry
from frazil.serve.opening import Opening
from frazil.serve.readiness import Problems, Readiness
from frazil.serve.verbs import Command

PROBLEMS_MAX = 10

_log = logging.getLogger("frazil.serve")
_STATUS: tuple[tuple[type[FrazilError], int], ...] = (
    *((kind, 404) for kind in (TopicNotFound, SubscriptionNotFound, SchemaNotFound, TableNotFound, JobNotFound)),
    *((kind, 409) for kind in (TopicExists, TopicInUse, TopicDiffers, SubscriptionTaken, BrokerOff, TableRefused)),
    *((kind, 409) for kind in (IncompatibleSchema, SubjectMismatch, OffsetOutOfRange)),
    (NamespaceNotFound, 404),
    *((kind, 409) for kind in (NamespaceExists, NamespaceInUse)),
    (InvalidInput, 400),
    (TooManyJobs, 429),
    (NotInstalled, 501),
    *((kind, 503) for kind in (TryLater, Closed, LakeUnavailable, MetadataUnavailable, LogFailed)),
)


def make_app(
    storage: Storage,
    opening: Opening,
    pipeline_up: Callable[[], bool] | None = None,
    *,
    broker: Callable[[], BrokerParts | None] | None = None,
    command: Command | None = None,
    addresses: Mapping[str, str] | None = None,
    problems: Problems = list,
    warnings: Problems = list,
    collectors: Iterable[Collector] = (),
) -> FastAPI:
    """`broker` is None where that is off. `command` gives that of a verb, for jobs. `addresses` are those of the doors.
    `problems` are reasons not to be ready beside those of opening, `warnings` problems that leave it ready;
    `collectors` are further metrics."""
    app = FastAPI(title="Frazil", version=frazil.__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    http = storage.settings.http
    app.add_middleware(CheckedCallers, listening=http.host, allowed=http.allowed_hosts)
    _answer_errors(app)
    readiness = Readiness(opening, problems, warnings)
    _add_health(app, readiness)
    jobs = AdminJobs.of(command or partial(_command, storage), SystemClock())
    add_admin(app, AdminParts(storage, jobs, broker, addresses or {}))
    registry = make_registry(storage, readiness, pipeline_up, collectors)

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return app


def _command(storage: Storage, *verb: str) -> list[str]:
    return [sys.executable, "-m", "frazil", *verb, "--data", str(storage.settings.data)]


def _add_health(app: FastAPI, readiness: Readiness) -> None:
    @app.get("/health/live")
    async def live() -> dict[str, str]:
        """The process answers; it says nothing of the topics."""
        return {"status": "live"}

    @app.get("/health/ready")
    def ready() -> JSONResponse:
        """Ready once all topics were opened and none is broken or misses its objective. The others work even then.

        `warnings` are problems that leave it ready: publishing goes on while rows wait for their tables.
        """
        opening = readiness.opening
        content: dict[str, Any] = {"opened": opening.opened, "topics": opening.total}
        content["warnings"] = readiness.warnings()
        reasons = readiness.problems()
        if reasons:
            return JSONResponse({"status": "degraded", **content, "reasons": reasons}, 503)
        if not opening.done:
            return JSONResponse({"status": "opening", **content, "reasons": []}, 503)
        return JSONResponse({"status": "ready", **content})


def _answer_errors(app: FastAPI) -> None:
    @app.exception_handler(FrazilError)
    def known(request: Request, error: FrazilError) -> JSONResponse:
        status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
        if status == 500:
            _log.error("%s %s: %s", request.method, request.url.path, error, extra={"code": error.code})
        return JSONResponse(error.as_dict(), status)

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
        return JSONResponse({"error": "internal", "message": "an error of Frazil's own; its log says more"}, 500)


def _allowed(app: FastAPI, request: Request) -> dict[str, str]:
    """All methods of a path; by itself Starlette names those of the first route that fits."""
    fits = [route for route in app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return {"Allow": ", ".join(sorted({method for route in fits for method in getattr(route, "methods", ())}))}


def _field(place: Sequence[str | int]) -> str:
    """Which part of a call, without where FastAPI has it from; a body that is no JSON has no parts."""
    named = [str(one) for one in place[1:] if not str(one).isdecimal()]
    return ".".join(named) or str(place[0])
