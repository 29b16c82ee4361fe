"""Maintenance of tables as jobs: started, watched, cancelled."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from frazil.serve.admin.job_models import MaintenanceJobModel, MaintenanceJobPage, NewMaintenance
from frazil.serve.admin.job_routes import add_job_routes
from frazil.serve.admin.openapi import errors
from frazil.serve.admin.parts import AdminParts


def maintenance_router(parts: AdminParts) -> APIRouter:
    router = APIRouter(prefix="/v1/maintenance", tags=["tables"])
    jobs = parts.jobs.maintenance

    @router.post(
        "",
        operation_id="start_maintenance",
        status_code=202,
        response_model=MaintenanceJobModel,
        responses=errors(400, 429),
    )
    async def start_maintenance(wanted: NewMaintenance) -> dict[str, Any]:
        """Begin to compact tables, expire snapshots, remove orphans, or all that is due. One runs at a time."""
        wanted.check()
        command = [*parts.jobs.command("table", wanted.verb), *wanted.arguments()]
        asked = {"verb": wanted.verb, "topic": wanted.topic, "dry_run": wanted.dry_run}
        return jobs.start(asked, command).as_dict(jobs.counted)

    add_job_routes(router, jobs, "maintenance", MaintenanceJobModel, MaintenanceJobPage)
    return router
