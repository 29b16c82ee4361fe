"""Verifications as jobs: start, watch, cancel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool

from frazil.core.access import Action, Right
from frazil.core.errors import TopicNotFound
from frazil.core.principal import LOCAL
from frazil.doors.http.access import Who, needs
from frazil.doors.http.admin.jobs.routes import add_job_routes
from frazil.doors.http.admin.lake_models import NewVerify, VerifyJobModel, VerifyJobPage
from frazil.doors.http.admin.openapi import errors
from frazil.doors.http.admin.rights import on_server, to_know
from frazil.doors.owning import Owning
from frazil.node.node import Node


def verify_router(node: Node) -> APIRouter:
    router = APIRouter(prefix="/v1/verify", tags=["verify"])
    jobs = node.jobs(LOCAL).verify

    async def of_topic(wanted: NewVerify) -> Sequence[Right]:
        return to_know(wanted.topic)

    @router.post(
        "",
        operation_id="start_verify",
        status_code=202,
        response_model=VerifyJobModel,
        responses=errors(400, 404, 429, 503),
        dependencies=[needs(on_server(Action.OPERATE)), needs(of_topic)],
    )
    async def start_verify(who: Who, wanted: NewVerify) -> dict[str, Any]:
        """Start to read log and table completely. One proof runs at a time; 429 if too many wait."""
        if wanted.topic is not None:
            Owning(node).check(wanted.topic)
        if wanted.topic is not None and wanted.topic not in await run_in_threadpool(node.topic_names, who):
            raise TopicNotFound(wanted.topic)
        return node.verify(who, wanted.topic, wanted.arguments()).as_dict(jobs.counted)

    add_job_routes(router, jobs, "verify", VerifyJobModel, VerifyJobPage)
    return router
