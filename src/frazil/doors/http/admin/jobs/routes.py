"""Routes shared by all kinds of jobs: list, watch, cancel."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel

from frazil.core.access import Action
from frazil.doors.http.access import needs
from frazil.doors.http.admin.openapi import errors
from frazil.doors.http.admin.paging import LIMIT_DEFAULT, After, Limit, page
from frazil.doors.http.admin.rights import on_server
from frazil.node.jobs.jobs import Jobs

JobId = Annotated[str, Path(min_length=1, max_length=64)]


def add_job_routes(router: APIRouter, jobs: Jobs, kind: str, model: type[BaseModel], models: type[BaseModel]) -> None:
    operating = [needs(on_server(Action.OPERATE))]

    @router.get(
        "",
        operation_id=f"list_{kind}",
        response_model=models,
        responses=errors(400),
        dependencies=operating,
        description=f"List each {jobs.what} that runs, waits, or has ended recently, oldest first.",
    )
    async def list_jobs(limit: Limit = LIMIT_DEFAULT, after: After = None) -> dict[str, Any]:
        found, more = page(jobs.all(), lambda job: job.id, limit, after)
        return {"items": [job.as_dict(jobs.counted) for job in found], "next": found[-1].id if more else None}

    @router.get(
        "/{job}",
        operation_id=f"get_{kind}",
        response_model=model,
        responses=errors(400, 404),
        dependencies=operating,
        description=f"Show the progress and the result of a {jobs.what}.",
    )
    async def get_job(job: JobId) -> dict[str, Any]:
        return jobs.get(job).as_dict(jobs.counted)

    @router.delete(
        "/{job}",
        operation_id=f"cancel_{kind}",
        response_model=model,
        responses=errors(400, 404),
        dependencies=operating,
        description=f"Cancel a {jobs.what}; one that has ended is removed.",
    )
    async def cancel_job(job: JobId) -> dict[str, Any]:
        return jobs.cancel(job).as_dict(jobs.counted)
