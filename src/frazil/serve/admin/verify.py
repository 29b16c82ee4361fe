"""Proofs as jobs: started, watched, cancelled."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool

from frazil.core.errors import TopicNotFound
from frazil.serve.admin.job_routes import add_job_routes
from frazil.serve.admin.lake_models import NewVerify, VerifyJobModel, VerifyJobPage
from frazil.serve.admin.openapi import errors
from frazil.serve.admin.parts import AdminParts


def verify_router(parts: AdminParts) -> APIRouter:
    router = APIRouter(prefix="/v1/verify", tags=["verify"])
    jobs = parts.jobs.verify

    @router.post(
        "",
        operation_id="start_verify",
        status_code=202,
        response_model=VerifyJobModel,
        responses=errors(400, 404, 429, 503),
    )
    async def start_verify(wanted: NewVerify) -> dict[str, Any]:
        """Begin to read log and table whole. One proof runs at a time; 429 if too many wait."""
        if wanted.topic is not None and wanted.topic not in await run_in_threadpool(parts.storage.topics):
            raise TopicNotFound(wanted.topic)
        return jobs.start({"topic": wanted.topic}, wanted.arguments()).as_dict(jobs.counted)

    add_job_routes(router, jobs, "verify", VerifyJobModel, VerifyJobPage)
    return router
