"""API keys: list, create, rotate, revoke. A key itself is in one answer only, that of its creation or rotation."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from frazil.core.access import Action
from frazil.doors.http.access import Who, needs
from frazil.doors.http.admin.models import Given, IsNumber, Positive
from frazil.doors.http.admin.openapi import errors
from frazil.doors.http.admin.paging import LIMIT_DEFAULT, After, Limit, Page, page
from frazil.doors.http.admin.rights import on_server
from frazil.node.access.keys import (
    DESCRIPTION_LENGTH_MAX,
    LIFETIME_MS_MAX,
    OVERLAP_MS_MAX,
    OWNER_LENGTH_MAX,
)
from frazil.node.node import Node

KeyPath = Annotated[str, Path(json_schema_extra={"pattern": "^[a-z2-7]{12}$"})]


class NewKey(Given):
    owner: str = Field(min_length=1, max_length=OWNER_LENGTH_MAX, description="who uses the key")
    description: str = Field("", max_length=DESCRIPTION_LENGTH_MAX)
    lifetime_ms: Annotated[Positive, Field(le=LIFETIME_MS_MAX)] | None = Field(
        None, description="the key expires after this time; null: never"
    )


class KeyRotation(Given):
    overlap_ms: Annotated[int, Field(ge=0, le=OVERLAP_MS_MAX), IsNumber] = Field(
        0, description="the old secret stays valid for this time"
    )


class KeyModel(BaseModel):
    id: str
    principal: str = Field(description="the name that roles are bound to")
    owner: str
    description: str
    created_us: int
    expires_us: int | None
    rotated_us: int | None
    old_secret_until_us: int | None = Field(description="the secret before the last rotation is valid until then")


class IssuedKey(KeyModel):
    key: str = Field(description="the key itself: it is shown only here")


class KeyPage(Page[KeyModel]):
    pass


class RevokedKey(BaseModel):
    id: str
    revoked: bool


def keys_router(node: Node) -> APIRouter:
    router = APIRouter(prefix="/v1/keys", tags=["security"], responses=errors(400, 409, 503))
    granting = [needs(on_server(Action.GRANT))]

    @router.get("", operation_id="list_keys", response_model=KeyPage, dependencies=granting)
    def list_keys(who: Who, limit: Limit = LIMIT_DEFAULT, after: After = None) -> dict[str, Any]:
        """List all API keys, without their secrets."""
        found, more = page(node.keys(who).list(), lambda one: one.id, limit, after)
        return {"items": [one.as_dict() for one in found], "next": found[-1].id if more else None}

    @router.post("", operation_id="create_key", status_code=201, response_model=IssuedKey, dependencies=granting)
    def create_key(who: Who, wanted: NewKey) -> dict[str, Any]:
        """Make an API key. It has no rights before a role is bound to its principal."""
        record, key = node.keys(who).create(wanted.owner, wanted.description, wanted.lifetime_ms)
        return {**record.as_dict(), "key": key}

    @router.post(
        "/{id}/rotate",
        operation_id="rotate_key",
        response_model=IssuedKey,
        responses=errors(404),
        dependencies=granting,
    )
    def rotate_key(who: Who, id: KeyPath, wanted: KeyRotation) -> dict[str, Any]:  # noqa: A002 - named in the path
        """Give a key a new secret. Its principal and rights stay."""
        record, key = node.keys(who).rotate(id, wanted.overlap_ms)
        return {**record.as_dict(), "key": key}

    @router.delete(
        "/{id}", operation_id="revoke_key", response_model=RevokedKey, responses=errors(404), dependencies=granting
    )
    def revoke_key(who: Who, id: KeyPath) -> dict[str, Any]:  # noqa: A002 - named in the path
        """Delete a key and its bindings. Its calls and streams are refused within a second."""
        node.keys(who).revoke(id)
        return {"id": id, "revoked": True}

    return router
