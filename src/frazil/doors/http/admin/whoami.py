"""The caller as the server knows it: its name, its roles, and until when its credentials are valid."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from frazil.doors.http.access import Who, needs
from frazil.doors.http.admin.bindings import BindingModel
from frazil.doors.http.admin.openapi import errors
from frazil.node.node import Node


class CallerModel(BaseModel):
    principal: str
    token_roles: list[str] = Field(description="roles that its token names")
    bindings: list[BindingModel]
    expires_us: int | None = Field(description="when its credentials expire")


def whoami_router(node: Node) -> APIRouter:
    router = APIRouter(prefix="/v1/whoami", tags=["security"], responses=errors(400, 409, 503))

    @router.get("", operation_id="whoami", response_model=CallerModel, dependencies=[needs()])
    def whoami(who: Who) -> dict[str, Any]:
        """Show who the caller is: every caller with valid credentials may ask."""
        own = node.access_parts(who).bindings.list(who.name)
        return {
            "principal": who.name,
            "token_roles": list(who.roles),
            "bindings": [one.as_dict() for one in own],
            "expires_us": who.expires_us,
        }

    return router
