"""List and create namespaces, and delete empty ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from fastapi import APIRouter
from pydantic import BaseModel, Field

from frazil.core import access
from frazil.core.access import Action, Right
from frazil.doors.http.access import Who, needs, shown
from frazil.doors.http.admin.models import Given, NamePage
from frazil.doors.http.admin.openapi import errors
from frazil.doors.http.admin.paging import LIMIT_DEFAULT, After, Limit, page
from frazil.doors.http.admin.paths import NAME_PATTERN, NamespacePath
from frazil.doors.http.admin.rights import on_namespace
from frazil.node.node import Node


class NewNamespace(Given):
    namespace: str = Field(json_schema_extra={"pattern": NAME_PATTERN})


class MadeNamespace(BaseModel):
    namespace: str


class DeletedNamespace(BaseModel):
    namespace: str
    deleted: bool


def namespaces_router(node: Node) -> APIRouter:
    router = APIRouter(prefix="/v1/namespaces", tags=["topics"], responses=errors(400, 409, 503))

    async def rights(wanted: NewNamespace) -> Sequence[Right]:
        return [Right(Action.CREATE, access.namespace(wanted.namespace))]

    @router.get("", operation_id="list_namespaces", response_model=NamePage, dependencies=[needs()])
    def list_namespaces(who: Who, limit: Limit = LIMIT_DEFAULT, after: After = None) -> dict[str, Any]:
        """List `default`, namespaces with topics, and those that were created."""
        visible = shown(node.gate, who, node.namespaces(who).names(), access.namespace)
        found, more = page(visible, lambda one: one, limit, after)
        return {"items": found, "next": found[-1] if more else None}

    @router.post(
        "", operation_id="create_namespace", status_code=201, response_model=MadeNamespace, dependencies=[needs(rights)]
    )
    def create_namespace(who: Who, wanted: NewNamespace) -> dict[str, Any]:
        """Create a namespace without topics. Creating a topic also creates its namespace."""
        node.namespaces(who).create(wanted.namespace)
        return {"namespace": wanted.namespace}

    @router.delete(
        "/{namespace}",
        operation_id="delete_namespace",
        response_model=DeletedNamespace,
        responses=errors(404),
        dependencies=[needs(on_namespace(Action.DELETE))],
    )
    def delete_namespace(who: Who, namespace: NamespacePath) -> dict[str, Any]:
        """Delete a namespace that has no topics."""
        name = unquote(namespace)
        node.namespaces(who).delete(name)
        return {"namespace": name, "deleted": True}

    return router
