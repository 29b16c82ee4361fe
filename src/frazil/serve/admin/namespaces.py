"""Namespaces: listed, made, and deleted when they are empty."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import unquote

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from frazil.serve.admin.models import Given, NamePage
from frazil.serve.admin.openapi import errors
from frazil.serve.admin.paging import LIMIT_DEFAULT, After, Limit, page
from frazil.serve.admin.parts import AdminParts
from frazil.serve.admin.paths import NAME_PATTERN

NamespacePath = Annotated[str, Path(json_schema_extra={"pattern": NAME_PATTERN})]


class NewNamespace(Given):
    namespace: str = Field(json_schema_extra={"pattern": NAME_PATTERN})


class MadeNamespace(BaseModel):
    namespace: str


class DeletedNamespace(BaseModel):
    namespace: str
    deleted: bool


def namespaces_router(parts: AdminParts) -> APIRouter:
    router = APIRouter(prefix="/v1/namespaces", tags=["topics"], responses=errors(400, 409, 503))

    @router.get("", operation_id="list_namespaces", response_model=NamePage)
    def list_namespaces(limit: Limit = LIMIT_DEFAULT, after: After = None) -> dict[str, Any]:
        """`default`, those that have topics, and those that were made."""
        found, more = page(parts.broker_parts().namespaces.names(), lambda one: one, limit, after)
        return {"items": found, "next": found[-1] if more else None}

    @router.post("", operation_id="create_namespace", status_code=201, response_model=MadeNamespace)
    def create_namespace(wanted: NewNamespace) -> dict[str, Any]:
        """A namespace without topics. A topic makes its namespace by itself."""
        parts.broker_parts().namespaces.create(wanted.namespace)
        return {"namespace": wanted.namespace}

    @router.delete(
        "/{namespace}", operation_id="delete_namespace", response_model=DeletedNamespace, responses=errors(404)
    )
    def delete_namespace(namespace: NamespacePath) -> dict[str, Any]:
        """Delete a namespace that has no topics."""
        name = unquote(namespace)
        parts.broker_parts().namespaces.delete(name)
        return {"namespace": name, "deleted": True}

    return router
