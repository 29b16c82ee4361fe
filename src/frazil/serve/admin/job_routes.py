"""What all kinds of jobs have in common: they are listed, watched and cancelled."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel

from frazil.serve.admin.jobs import Jobs
from frazil.serve.admin.openapi import errors
from frazil.serve.admin.paging import LIMIT_DEFAULT, After, Limit, page

JobId = Annotated[str, Path(min_length=1, max_length=64)]


def add_job_routes(router: APIRouter, jobs: Jobs, kind: str, model: type[BaseModel], models: type[BaseModel]) -> None:
    @router.get(
        "",
        operation_id=f"list_{kind}",
        response_model=models,
        responses=errors(400),
        description=f"Every {jobs.what} that runs, waits, or has ended lately, oldest first.",
    )
    async def list_jobs(limit: Limit = LIMIT_DEFAULT, after: After = None) -> dict[str, Any]:
        found, more = page(jobs.all(), lambda job: job.id, limit, after)
        return {"items": [job.as_dict(jobs.counted) for job in found], "next": found[-1].id if more else None}

    @router.get(
        "/{job}",
        operation_id=f"get_{kind}",
        response_model=model,
        responses=errors(400, 404),
        description=f"How far a {jobs.what} is, and what has come of it.",
    )
    async def get_job(job: JobId) -> dict[str, Any]:
        return jobs.get(job).as_dict(jobs.counted)

    @router.delete(
        "/{job}",
        operation_id=f"cancel_{kind}",
        response_model=model,
        responses=errors(400, 404),
        description=f"Cancel a {jobs.what}; one that has ended is forgotten.",
    )
    async def cancel_job(job: JobId) -> dict[str, Any]:
        return jobs.cancel(job).as_dict(jobs.counted)
