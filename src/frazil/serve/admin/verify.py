"""Proofs as jobs: started, watched, cancelled."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from starlette.concurrency import run_in_threadpool

from frazil.core.errors import TopicNotFound
from frazil.serve.admin.lake_models import NewVerify, VerifyJobModel, VerifyJobPage
from frazil.serve.admin.openapi import errors
from frazil.serve.admin.paging import LIMIT_DEFAULT, After, Limit, page
from frazil.serve.admin.parts import AdminParts

JobId = Annotated[str, Path(min_length=1, max_length=64)]


def verify_router(parts: AdminParts) -> APIRouter:
    router = APIRouter(prefix="/v1/verify", tags=["verify"])

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
        return parts.jobs.start(wanted.topic).as_dict()

    @router.get("", operation_id="list_verify", response_model=VerifyJobPage, responses=errors(400))
    async def list_verify(limit: Limit = LIMIT_DEFAULT, after: After = None) -> dict[str, Any]:
        """Proofs that run, wait, or have ended lately, oldest first."""
        found, more = page(parts.jobs.all(), lambda job: job.id, limit, after)
        return {"items": [job.as_dict() for job in found], "next": found[-1].id if more else None}

    @router.get("/{job}", operation_id="get_verify", response_model=VerifyJobModel, responses=errors(400, 404))
    async def get_verify(job: JobId) -> dict[str, Any]:
        """How far a proof is, and what it has found."""
        return parts.jobs.get(job).as_dict()

    @router.delete("/{job}", operation_id="cancel_verify", response_model=VerifyJobModel, responses=errors(400, 404))
    async def cancel_verify(job: JobId) -> dict[str, Any]:
        """Cancel a proof; one that has ended is forgotten."""
        return parts.jobs.cancel(job).as_dict()

    return router
