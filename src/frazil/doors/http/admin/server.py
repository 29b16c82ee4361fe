"""The server itself: its version, and its addresses."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

import frazil
from frazil.doors.http.access import needs
from frazil.doors.http.admin.openapi import errors
from frazil.node.node import Node


class ServerModel(BaseModel):
    version: str
    flight: str | None = Field(description="the address of the Flight door for other hosts; null while it is closed")
    danube: str | None = Field(description="for Danube clients; null if the broker is off or not open yet")
    admin: str | None = Field(description="for Danube's admin tools; null like `danube`")


def server_router(node: Node) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["server"], responses=errors(400))

    @router.get("/server", operation_id="get_server", response_model=ServerModel, dependencies=[needs()])
    async def get_server() -> dict[str, Any]:
        """Show the version, and the addresses of the other doors: every client must know them."""
        doors = node.addresses
        danube = {name: doors.get(name) for name in ("danube", "admin")}
        return {"version": frazil.__version__, "flight": doors.get("advertised"), **danube}

    return router
