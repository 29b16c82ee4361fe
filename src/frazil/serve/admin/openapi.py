"""What the OpenAPI document says of errors, so that it is true: a wrong call is 400 here, never 422."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from frazil.serve.admin.models import ErrorBody

_SAID = {
    400: "The call is wrong; `field` names what to mend.",
    404: "It is not there.",
    409: "What is there does not allow it; the message says what would.",
    413: "The body is too large.",
    429: "Too many wait already.",
    500: "The log is damaged, or an error of Frazil's own.",
    503: "It can't be had now; the same call may succeed later.",
}
TAGS = [
    {"name": "topics", "description": "Topics, their partitions and their retention."},
    {"name": "subscriptions", "description": "Who publishes, who consumes, and how far everyone is."},
    {"name": "dead letters", "description": "Messages that nobody acknowledged."},
    {"name": "schemas", "description": "Subjects, versions, and what topics ask of messages."},
    {"name": "tables", "description": "Tables, and how far each has its log."},
    {"name": "verify", "description": "Proofs that every acknowledged offset is in one place, as jobs."},
    {"name": "server", "description": "The server itself, and its other doors."},
]


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorBody, "description": _SAID[status]} for status in statuses}


def say_how_it_is(app: FastAPI) -> None:
    def made() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _as_answered(get_openapi(title=app.title, version=app.version, routes=app.routes))
            app.openapi_schema["tags"] = TAGS
        return app.openapi_schema

    app.openapi = made  # type: ignore[method-assign]


def _as_answered(document: dict[str, Any]) -> dict[str, Any]:
    for operation in (operation for path in document["paths"].values() for operation in path.values()):
        if "responses" in operation:
            operation["responses"].pop("422", None)
            if "tags" in operation:
                operation["responses"].setdefault("500", _error(500))
            if "requestBody" in operation:
                operation["responses"].setdefault("413", _error(413))
    for name in ("HTTPValidationError", "ValidationError"):
        document.get("components", {}).get("schemas", {}).pop(name, None)
    return document


def _error(status: int) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/ErrorBody"}
    return {"description": _SAID[status], "content": {"application/json": {"schema": schema}}}
