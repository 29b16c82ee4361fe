"""Bindings of roles to principals: list, add, remove."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from frazil.core.access import Action
from frazil.doors.http.access import Who, needs
from frazil.doors.http.admin.models import Given
from frazil.doors.http.admin.openapi import errors
from frazil.doors.http.admin.paging import LIMIT_DEFAULT, After, Limit, Page, page
from frazil.doors.http.admin.rights import on_server
from frazil.node.access.grants import order
from frazil.node.access.roles import PATTERN_LENGTH_MAX, PRINCIPAL_BYTES_MAX
from frazil.node.node import Node

PrincipalQuery = Annotated[str, Query(min_length=1, max_length=PRINCIPAL_BYTES_MAX)]
ScopeQuery = Annotated[str, Query(min_length=1, max_length=PATTERN_LENGTH_MAX)]
RoleQuery = Annotated[str, Query(min_length=1, max_length=64)]


class NewBinding(Given):
    principal: str = Field(max_length=PRINCIPAL_BYTES_MAX, description="as key:ID, jwt:SUBJECT or cert:NAME")
    role: str = Field(min_length=1, max_length=64)
    scope: str = Field(
        "*", min_length=1, max_length=PATTERN_LENGTH_MAX, description="where the role applies, as /shop/*"
    )


class BindingModel(BaseModel):
    principal: str
    role: str
    scope: str


class BindingPage(Page[BindingModel]):
    pass


class RemovedBinding(BindingModel):
    deleted: bool


def bindings_router(node: Node) -> APIRouter:
    router = APIRouter(prefix="/v1/bindings", tags=["security"], responses=errors(400, 409, 503))
    granting = [needs(on_server(Action.GRANT))]

    @router.get("", operation_id="list_bindings", response_model=BindingPage, dependencies=granting)
    def list_bindings(
        who: Who, principal: PrincipalQuery | None = None, limit: Limit = LIMIT_DEFAULT, after: After = None
    ) -> dict[str, Any]:
        """List all bindings, or those of one principal."""
        found, more = page(node.bindings(who).list(principal), order, limit, after)
        return {"items": [one.as_dict() for one in found], "next": order(found[-1]) if more else None}

    @router.post(
        "",
        operation_id="add_binding",
        status_code=201,
        response_model=BindingModel,
        responses=errors(404),
        dependencies=granting,
    )
    def add_binding(who: Who, wanted: NewBinding) -> dict[str, Any]:
        """Bind a role to a principal: effective within a second. A binding that exists stays."""
        return node.bindings(who).add(wanted.principal, wanted.role, wanted.scope).as_dict()

    @router.delete(
        "", operation_id="remove_binding", response_model=RemovedBinding, responses=errors(404), dependencies=granting
    )
    def remove_binding(who: Who, principal: PrincipalQuery, role: RoleQuery, scope: ScopeQuery = "*") -> dict[str, Any]:
        """Remove a binding: effective within a second, also for open streams."""
        return {**node.bindings(who).remove(principal, role, scope).as_dict(), "deleted": True}

    return router
