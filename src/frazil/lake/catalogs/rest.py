"""Improvements of PyIceberg's REST client: a timeout, and a field that older servers require."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter

from frazil.lake.pyiceberg_private import mount_adapter

CONNECT_S_MAX = 10
ANSWER_S_MAX = 60

_COLUMN_IDS = ("id", "element-id", "key-id", "value-id")


def improve(catalog: RestCatalog) -> None:
    """Apply to later requests; a catalog with its own adapter (AWS signatures) keeps it."""
    for scheme in ("http://", "https://"):
        mount_adapter(catalog, scheme, _Adapter())


class _Adapter(HTTPAdapter):
    def send(self, request: PreparedRequest, **how: Any) -> Response:  # type: ignore[override]
        how["timeout"] = how.get("timeout") or (CONNECT_S_MAX, ANSWER_S_MAX)
        if isinstance(request.body, bytes) and b'"add-schema"' in request.body:
            body = with_last_column_ids(request.body)
            request.prepare_body(body, None)
        return super().send(request, **how)


def with_last_column_ids(body: bytes) -> bytes:
    """Add `last-column-id`, which is optional now, so PyIceberg omits it; Nessie 0.99 answers 500 without it."""
    commit = json.loads(body)
    for update in commit.get("updates", ()):
        if update.get("action") == "add-schema":
            update.setdefault("last-column-id", max(_column_ids(update["schema"]), default=0))
    return json.dumps(commit).encode()


def _column_ids(schema: Any) -> Iterator[int]:
    if isinstance(schema, dict):
        yield from (schema[name] for name in _COLUMN_IDS if isinstance(schema.get(name), int))
        for inner in schema.values():
            yield from _column_ids(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _column_ids(inner)
