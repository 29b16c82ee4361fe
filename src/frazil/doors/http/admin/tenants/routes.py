"""Tenants: list, create, show, change, delete; and their keys. A key itself is in one answer only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query

from frazil.core.access import Action, Right
from frazil.doors.http.access import Who, needs, shown
from frazil.doors.http.admin.openapi import errors
from frazil.doors.http.admin.paging import LIMIT_DEFAULT, After, Limit, page
from frazil.doors.http.admin.rights import on_server
from frazil.doors.http.admin.tenants.models import (
    KeyOfTenant,
    MadeTenant,
    NewTenant,
    RotatedKey,
    TenantDeletionModel,
    TenantDescription,
    TenantPage,
    TenantPath,
    TenantSettings,
)
from frazil.node.node import Node
from frazil.node.telemetry.scopes import resource_of


async def _describing(tenant: TenantPath) -> Sequence[Right]:
    return [Right(Action.DESCRIBE, resource_of(tenant))]


def tenants_router(node: Node) -> APIRouter:
    router = APIRouter(prefix="/v1/tenants", tags=["telemetry"], responses=errors(400, 409, 503))
    _add_reading(router, node)
    _add_changes(router, node)
    return router


def _add_reading(router: APIRouter, node: Node) -> None:
    @router.get("", operation_id="list_tenants", response_model=TenantPage, dependencies=[needs()])
    def list_tenants(who: Who, limit: Limit = LIMIT_DEFAULT, after: After = None) -> dict[str, Any]:
        """List all tenants."""
        known = node.telemetry(who).tenants(who).list()
        visible = shown(node.gate, who, known, lambda one: resource_of(one.name))
        found, more = page(visible, lambda one: one.name, limit, after)
        settings = node.settings.telemetry
        return {"items": [one.as_dict(settings) for one in found], "next": found[-1].name if more else None}

    @router.get(
        "/{tenant}",
        operation_id="describe_tenant",
        response_model=TenantDescription,
        responses=errors(404),
        dependencies=[needs(_describing)],
    )
    def describe_tenant(who: Who, tenant: TenantPath) -> dict[str, Any]:
        """Show a tenant: its datasets, its settings and what applies, and the ids of its keys."""
        return node.telemetry(who).tenants(who).describe(tenant)


def _add_changes(router: APIRouter, node: Node) -> None:
    granting = [needs(on_server(Action.GRANT))]

    @router.post("", operation_id="create_tenant", status_code=201, response_model=MadeTenant, dependencies=granting)
    def create_tenant(who: Who, wanted: NewTenant) -> dict[str, Any]:
        """Create a tenant. With security on it gets an API key, which is in this answer only."""
        return node.telemetry(who).tenants(who).create(wanted.tenant, wanted.given(), with_key=wanted.key)

    @router.put(
        "/{tenant}/settings",
        operation_id="change_tenant",
        response_model=TenantDescription,
        responses=errors(404),
        dependencies=granting,
    )
    def change_tenant(who: Who, tenant: TenantPath, wanted: TenantSettings) -> dict[str, Any]:
        """Change some settings of a tenant. Effective on every broker within a second."""
        return node.telemetry(who).tenants(who).change(tenant, wanted.given())

    @router.post(
        "/{tenant}/rotate-key",
        operation_id="rotate_tenant_key",
        response_model=RotatedKey,
        responses=errors(404),
        dependencies=granting,
    )
    def rotate_tenant_key(who: Who, tenant: TenantPath, wanted: KeyOfTenant) -> dict[str, Any]:
        """Give a key of a tenant a new secret. A tenant without a key gets one."""
        return node.telemetry(who).tenants(who).rotate_key(tenant, wanted.key_id, wanted.overlap_ms)

    @router.delete(
        "/{tenant}",
        operation_id="delete_tenant",
        response_model=TenantDeletionModel,
        responses=errors(404),
        dependencies=granting,
    )
    def delete_tenant(
        who: Who,
        tenant: TenantPath,
        force: Annotated[bool, Query(description="also delete subscriptions and producers of its topics")] = False,
    ) -> dict[str, Any]:
        """Delete a tenant with all its data, permanently: topics, tables with their files, objects, keys and bindings.

        It ends after some seconds: call it again until `done` is true. If it was refused, nothing was changed.
        """
        return node.telemetry(who).tenants(who).delete(tenant, force=force)
