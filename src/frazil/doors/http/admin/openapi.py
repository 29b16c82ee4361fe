"""Error responses in the OpenAPI document: a wrong call is 400 here, never 422."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from frazil.doors.http.admin.models import ErrorBody

_SAID = {
    400: "The request is invalid; `field` names the wrong field.",
    401: "Credentials are missing or invalid.",
    403: "The caller may not do this, whether or not it exists.",
    404: "Not found.",
    409: "It conflicts with the present state; see the message.",
    413: "The body is too large.",
    429: "Too many requests are waiting, or a quota is used up; see `Retry-After`.",
    500: "The log is damaged, or an internal error occurred.",
    503: "Temporarily unavailable; retry later.",
}
TAGS = [
    {"name": "topics", "description": "Topics, their partitions and their retention."},
    {"name": "subscriptions", "description": "Producers, subscriptions, consumers and their progress."},
    {"name": "dead letters", "description": "Messages that nobody acknowledged."},
    {"name": "schemas", "description": "Subjects, versions, and the validation policies of topics."},
    {"name": "tables", "description": "Tables, and the progress of each."},
    {"name": "verify", "description": "Proofs that every acknowledged offset is in one place, as jobs."},
    {"name": "security", "description": "API keys, roles, and bindings of roles to principals."},
    {"name": "cluster", "description": "The brokers of a cluster, their topics and their load."},
    {"name": "server", "description": "The server itself, and its other doors."},
]

OF_TOPIC = "/v1/topics/{namespace}/{topic}"
_REDIRECT = "Another broker of the cluster owns the topic; `Location` is the same call there."
BEARER = "bearer"
"""An API key or a token; needed only while security is on."""


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorBody, "description": _SAID[status]} for status in statuses}


def say_how_it_is(app: FastAPI) -> None:
    def made() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _as_answered(get_openapi(title=app.title, version=app.version, routes=app.routes))
            app.openapi_schema["tags"] = TAGS
            app.openapi_schema["components"]["securitySchemes"] = {BEARER: {"type": "http", "scheme": "bearer"}}
        return app.openapi_schema

    app.openapi = made  # type: ignore[method-assign]


def _as_answered(document: dict[str, Any]) -> dict[str, Any]:
    operations = ((path, one) for path, known in document["paths"].items() for one in known.values())
    for path, operation in operations:
        if "responses" in operation:
            operation["responses"].pop("422", None)
            if "tags" in operation:
                if path.startswith(OF_TOPIC):
                    operation["responses"].setdefault("307", {"description": _REDIRECT})
                for status in (401, 403, 429, 500, 503):
                    operation["responses"].setdefault(str(status), _error(status))
                operation["security"] = [{}, {BEARER: []}]
            if "requestBody" in operation:
                operation["responses"].setdefault("413", _error(413))
    for name in ("HTTPValidationError", "ValidationError"):
        document.get("components", {}).get("schemas", {}).pop(name, None)
    return document


def _error(status: int) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/ErrorBody"}
    return {"description": _SAID[status], "content": {"application/json": {"schema": schema}}}
