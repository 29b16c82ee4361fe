"""The admin door: health, metrics and topics over HTTP. Every error is a JSON object with a code and a message."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException

from frazil.core.errors import Closed, FrazilError, InvalidInput, TopicExists, TopicNotFound, TryLater
from frazil.core.names import TopicName
from frazil.log.storage import Storage
from frazil.serve.metrics import make_registry
from frazil.serve.opening import Opening
from frazil.serve.readiness import Problems, Readiness

PAGE_TOPICS_DEFAULT = 100
PAGE_TOPICS_MAX = 1_000

_log = logging.getLogger("frazil.serve")
_STATUS: tuple[tuple[type[FrazilError], int], ...] = (
    (TopicNotFound, 404),
    (TopicExists, 409),
    (InvalidInput, 400),
    (TryLater, 503),
    (Closed, 503),
)


def make_app(
    storage: Storage,
    opening: Opening,
    pipeline_up: Callable[[], bool] | None = None,
    *,
    problems: Problems = list,
    collectors: Iterable[Collector] = (),
) -> FastAPI:
    """`problems` are reasons not to be ready beside those of opening; `collectors` are further metrics."""
    app = FastAPI(title="Frazil", docs_url=None, redoc_url=None)
    _answer_errors(app)
    readiness = Readiness(opening, problems)
    _add_health(app, readiness)
    _add_topics(app, storage)
    registry = make_registry(storage, readiness, pipeline_up, collectors)

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return app


def _add_health(app: FastAPI, readiness: Readiness) -> None:
    @app.get("/health/live")
    async def live() -> dict[str, str]:
        """The process answers; it says nothing of the topics."""
        return {"status": "live"}

    @app.get("/health/ready")
    def ready() -> JSONResponse:
        """Ready once all topics were opened and none is broken or misses its objective. The others work even then."""
        opening = readiness.opening
        content: dict[str, Any] = {"opened": opening.opened, "topics": opening.total}
        reasons = readiness.problems()
        if reasons:
            return JSONResponse({"status": "degraded", **content, "reasons": reasons}, 503)
        if not opening.done:
            return JSONResponse({"status": "opening", **content, "reasons": []}, 503)
        return JSONResponse({"status": "ready", **content})


def _add_topics(app: FastAPI, storage: Storage) -> None:
    @app.get("/topics")
    def topics(
        limit: Annotated[int, Query(ge=1, le=PAGE_TOPICS_MAX)] = PAGE_TOPICS_DEFAULT, after: str | None = None
    ) -> dict[str, Any]:
        """Names in order; `next` goes into `after` for the next page, and is null on the last one."""
        names = [TopicName.parse(name) for name in storage.topics()]
        if after is not None:
            last = TopicName.parse(after)
            names = [name for name in names if name > last]
        page = [str(name) for name in names[:limit]]
        return {"topics": page, "next": page[-1] if len(names) > limit else None}

    @app.get("/topics/{namespace}/{topic}")
    def topic(namespace: str, topic: str) -> dict[str, Any]:
        return storage.topic(f"/{namespace}/{topic}", create=False).stats().as_dict()


def _answer_errors(app: FastAPI) -> None:
    @app.exception_handler(FrazilError)
    def known(request: Request, error: FrazilError) -> JSONResponse:
        status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
        if status == 500:
            _log.error("%s %s: %s", request.method, request.url.path, error, extra={"code": error.code})
        return JSONResponse(error.as_dict(), status)

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        problems = "; ".join(f"{problem['loc'][-1]}: {problem['msg']}" for problem in error.errors())
        return JSONResponse(InvalidInput(problems).as_dict(), 400)

    @app.exception_handler(HTTPException)
    def plain(_: Request, error: HTTPException) -> JSONResponse:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
        return JSONResponse({"error": code, "message": str(error.detail)}, error.status_code, error.headers)

    @app.exception_handler(Exception)
    def unknown(request: Request, error: Exception) -> JSONResponse:
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return JSONResponse({"error": "internal", "message": "an error of Frazil's own; its log says more"}, 500)
