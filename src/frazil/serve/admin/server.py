"""The server itself: its version, and where its doors are."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

import frazil
from frazil.serve.admin.openapi import errors
from frazil.serve.admin.parts import AdminParts


class ServerModel(BaseModel):
    version: str
    flight: str | None = Field(description="where other hosts reach the Flight door; null as long as it is closed")
    danube: str | None = Field(description="for Danube clients; null where the broker is off or not open yet")
    admin: str | None = Field(description="for Danube's admin tools; null as `danube` is")


def server_router(parts: AdminParts) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["server"], responses=errors(400))

    @router.get("/server", operation_id="get_server", response_model=ServerModel)
    async def get_server() -> dict[str, Any]:
        """Its version, and the addresses of its other doors."""
        doors = parts.addresses
        danube = {name: doors.get(name) for name in ("danube", "admin")}
        return {"version": frazil.__version__, "flight": doors.get("advertised"), **danube}

    return router
