"""Tables, and how far each has its log.

What reads tables is imported when it is first asked for: it takes a second, and the log is to be there at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter

from frazil.core.clock import SystemClock
from frazil.core.errors import LakeUnavailable
from frazil.core.names import TopicName
from frazil.core.settings import Settings
from frazil.serve.admin.lake_models import PipelineStatus, TableDescription, TablePage
from frazil.serve.admin.openapi import errors
from frazil.serve.admin.paging import LIMIT_DEFAULT, After, AfterTopic, Limit, page
from frazil.serve.admin.parts import AdminParts
from frazil.serve.admin.paths import TopicPath

if TYPE_CHECKING:
    from frazil.lake.upkeep import Upkeep


def tables_router(parts: AdminParts) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["tables"], responses=errors(400, 503))
    settings = parts.storage.settings

    @router.get("/pipeline", operation_id="pipeline_status", response_model=PipelineStatus)
    def pipeline_status(limit: Limit = LIMIT_DEFAULT, after: AfterTopic = None) -> dict[str, Any]:
        """How the mover stands, and how far each table has its log: for each topic that is moved, in pages."""
        try:
            from frazil.pipeline.status import pipeline_page
        except ModuleNotFoundError as error:
            raise _missing(error) from None
        if after is not None:
            TopicName.parse(after)
        found, more = pipeline_page(settings, SystemClock(), limit=limit, after=after)
        told = found.as_dict()
        return {**told, "next": told["topics"][-1]["topic"] if more else None}

    @router.get("/tables", operation_id="list_tables", response_model=TablePage)
    def list_tables(limit: Limit = LIMIT_DEFAULT, after: After = None) -> dict[str, Any]:
        """All tables that hold rows of a log."""
        upkeep = _upkeep(settings)
        names, more = page(upkeep.names(), str, limit, after)
        return {"items": [upkeep.summary(name).as_dict() for name in names], "next": str(names[-1]) if more else None}

    @router.get(
        "/tables/{namespace}/{topic}",
        operation_id="describe_table",
        response_model=TableDescription,
        responses=errors(404),
    )
    def describe_table(name: TopicPath) -> dict[str, Any]:
        """The table of a topic: columns, partitioning, properties, snapshots, and the files of each partition."""
        upkeep = _upkeep(settings)
        return upkeep.description(upkeep.names(str(name))[0])

    return router


def _upkeep(settings: Settings) -> Upkeep:
    try:
        from frazil.lake.upkeep import Upkeep
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    return Upkeep(settings)


def _missing(error: ModuleNotFoundError) -> LakeUnavailable:
    return LakeUnavailable("catalog", f"{error.name} is not installed", "install frazil[lake]")
