"""Table maintenance as jobs: start, watch, cancel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter

from frazil.core.access import Action, Right
from frazil.core.principal import LOCAL
from frazil.doors.http.access import Who, needs
from frazil.doors.http.admin.jobs.models import MaintenanceJobModel, MaintenanceJobPage, NewMaintenance
from frazil.doors.http.admin.jobs.routes import add_job_routes
from frazil.doors.http.admin.openapi import errors
from frazil.doors.http.admin.rights import on_server, to_know
from frazil.node.node import Node


def maintenance_router(node: Node) -> APIRouter:
    router = APIRouter(prefix="/v1/maintenance", tags=["tables"])
    jobs = node.jobs(LOCAL).maintenance

    async def of_topic(wanted: NewMaintenance) -> Sequence[Right]:
        return to_know(wanted.topic)

    @router.post(
        "",
        operation_id="start_maintenance",
        status_code=202,
        response_model=MaintenanceJobModel,
        responses=errors(400, 429),
        dependencies=[needs(on_server(Action.OPERATE)), needs(of_topic)],
    )
    async def start_maintenance(who: Who, wanted: NewMaintenance) -> dict[str, Any]:
        """Start to compact tables, expire snapshots, remove orphans, or all that is due. One job runs at a time."""
        wanted.check()
        command = [*node.jobs(who).command("table", wanted.verb), *wanted.arguments()]
        asked = {"verb": wanted.verb, "topic": wanted.topic, "dry_run": wanted.dry_run}
        return jobs.start(asked, command).as_dict(jobs.counted)

    add_job_routes(router, jobs, "maintenance", MaintenanceJobModel, MaintenanceJobPage)
    return router
