"""Checks of the log's files as jobs: started, watched, cancelled."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from frazil.serve.admin.job_models import CheckJobModel, CheckJobPage, NewCheck
from frazil.serve.admin.job_routes import add_job_routes
from frazil.serve.admin.openapi import errors
from frazil.serve.admin.parts import AdminParts


def checks_router(parts: AdminParts) -> APIRouter:
    router = APIRouter(prefix="/v1/log-checks", tags=["log"])
    jobs = parts.jobs.checks

    @router.post(
        "",
        operation_id="start_log_check",
        status_code=202,
        response_model=CheckJobModel,
        responses=errors(400, 429),
    )
    async def start_log_check(wanted: NewCheck) -> dict[str, Any]:
        """Begin to read all files of the log, of one topic or of all. One runs at a time; 429 if too many wait."""
        return jobs.start({"topic": wanted.topic}, wanted.arguments()).as_dict(jobs.counted)

    add_job_routes(router, jobs, "log_check", CheckJobModel, CheckJobPage)
    return router
