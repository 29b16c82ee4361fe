"""Roles: list, show, set, delete. Built-in roles are shown and cannot be changed."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from frazil.core.access import Action
from frazil.doors.http.access import Who, needs
from frazil.doors.http.admin.models import Given
from frazil.doors.http.admin.openapi import errors
from frazil.doors.http.admin.paging import LIMIT_DEFAULT, After, Limit, Page, page
from frazil.doors.http.admin.rights import on_server
from frazil.node.access.roles import PATTERN_LENGTH_MAX, RULES_MAX
from frazil.node.node import Node

RolePath = Annotated[str, Path(json_schema_extra={"pattern": "^[a-z][a-z0-9_.-]{0,63}$"})]
ActionName = Literal["*", "describe", "read", "produce", "consume", "create", "alter", "delete", "operate", "grant"]
KindName = Literal["*", "server", "namespace", "topic", "table", "subscription", "schema"]


class RuleModel(Given):
    effect: Literal["allow", "deny"] = Field("allow", description="a rule that denies wins over all that allow")
    actions: list[ActionName] = Field(min_length=1, max_length=len(Action))
    kind: KindName = Field(description="kind of the resources")
    pattern: str = Field(
        "*", min_length=1, max_length=PATTERN_LENGTH_MAX, description="names of the resources, as /shop/*"
    )


class RoleRules(Given):
    rules: list[RuleModel] = Field(min_length=1, max_length=RULES_MAX)


class RoleModel(BaseModel):
    name: str
    built_in: bool
    rules: list[RuleModel]


class RolePage(Page[RoleModel]):
    pass


class DeletedRole(BaseModel):
    name: str
    deleted: bool


def roles_router(node: Node) -> APIRouter:
    router = APIRouter(prefix="/v1/roles", tags=["security"], responses=errors(400, 409, 503))
    granting = [needs(on_server(Action.GRANT))]

    @router.get("", operation_id="list_roles", response_model=RolePage, dependencies=granting)
    def list_roles(who: Who, limit: Limit = LIMIT_DEFAULT, after: After = None) -> dict[str, Any]:
        """List the built-in roles and those that were created."""
        found, more = page(node.roles(who).list(), lambda one: one.name, limit, after)
        return {"items": [one.as_dict() for one in found], "next": found[-1].name if more else None}

    @router.get(
        "/{name}", operation_id="get_role", response_model=RoleModel, responses=errors(404), dependencies=granting
    )
    def get_role(who: Who, name: RolePath) -> dict[str, Any]:
        """Show one role."""
        return node.roles(who).get(name).as_dict()

    @router.put("/{name}", operation_id="set_role", response_model=RoleModel, dependencies=granting)
    def set_role(who: Who, name: RolePath, wanted: RoleRules) -> dict[str, Any]:
        """Create a role, or replace its rules: effective within a second."""
        return node.roles(who).put(name, [rule.model_dump() for rule in wanted.rules]).as_dict()

    @router.delete(
        "/{name}", operation_id="delete_role", response_model=DeletedRole, responses=errors(404), dependencies=granting
    )
    def delete_role(
        who: Who,
        name: RolePath,
        force: Annotated[bool, Query(description="even if it denies something: tokens may name it")] = False,
    ) -> dict[str, Any]:
        """Delete a role that has no bindings."""
        node.roles(who).delete(name, force=force)
        return {"name": name, "deleted": True}

    return router
