"""Checks of the log's files as jobs: start, watch, cancel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter

from frazil.core.access import Action, Right
from frazil.core.principal import LOCAL
from frazil.doors.http.access import needs
from frazil.doors.http.admin.jobs.models import CheckJobModel, CheckJobPage, NewCheck
from frazil.doors.http.admin.jobs.routes import add_job_routes
from frazil.doors.http.admin.openapi import errors
from frazil.doors.http.admin.rights import on_server, to_know
from frazil.doors.owning import Owning
from frazil.node.node import Node


def checks_router(node: Node) -> APIRouter:
    router = APIRouter(prefix="/v1/log-checks", tags=["log"])
    jobs = node.jobs(LOCAL).checks

    async def of_topic(wanted: NewCheck) -> Sequence[Right]:
        return to_know(wanted.topic)

    @router.post(
        "",
        operation_id="start_log_check",
        status_code=202,
        response_model=CheckJobModel,
        responses=errors(400, 429),
        dependencies=[needs(on_server(Action.OPERATE)), needs(of_topic)],
    )
    async def start_log_check(wanted: NewCheck) -> dict[str, Any]:
        """Start reading all files of the log, of one topic or of all. One runs at a time; 429 if too many wait."""
        if wanted.topic is not None:
            Owning(node).check(wanted.topic)
        return jobs.start({"topic": wanted.topic}, wanted.arguments()).as_dict(jobs.counted)

    add_job_routes(router, jobs, "log_check", CheckJobModel, CheckJobPage)
    return router
