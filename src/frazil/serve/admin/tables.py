"""Tables, and how far each has its log.

What reads tables is imported when it is first asked for: it takes a second, and the log is to be there at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter

from frazil.core.clock import SystemClock
from frazil.core.errors import TryLater
from frazil.core.extras import needs
from frazil.core.names import TopicName
from frazil.core.settings import Settings
from frazil.serve.admin.lake_models import PipelineStatus, TableDescription, TablePage
from frazil.serve.admin.openapi import errors
from frazil.serve.admin.paging import LIMIT_DEFAULT, After, AfterTopic, Limit, page
from frazil.serve.admin.parts import AdminParts
from frazil.serve.admin.paths import TopicPath

if TYPE_CHECKING:
    from frazil.lake.upkeep import Upkeep

THREADS_MAX = 4
WAITING_MAX = 16


class LakeThreads:
    """A catalog may hang. So many threads wait for it at once, and some callers for these; all else goes on."""

    def __init__(self) -> None:
        self._limiter = CapacityLimiter(THREADS_MAX)

    async def run(self, look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if self._limiter.statistics().tasks_waiting >= WAITING_MAX:
            raise TryLater(f"{WAITING_MAX} callers wait for the catalog already; does it answer?", limit=WAITING_MAX)
        return await to_thread.run_sync(look, limiter=self._limiter)


def tables_router(parts: AdminParts) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["tables"], responses=errors(400, 503))
    settings, threads = parts.storage.settings, LakeThreads()

    @router.get("/pipeline", operation_id="pipeline_status", response_model=PipelineStatus)
    async def pipeline_status(limit: Limit = LIMIT_DEFAULT, after: AfterTopic = None) -> dict[str, Any]:
        """How the mover stands, and how far each table has its log: for each topic that is moved, in pages."""
        if after is not None:
            TopicName.parse(after)
        return await threads.run(lambda: _pipeline(settings, limit, after))

    @router.get("/tables", operation_id="list_tables", response_model=TablePage)
    async def list_tables(limit: Limit = LIMIT_DEFAULT, after: After = None) -> dict[str, Any]:
        """All tables that hold rows of a log."""
        return await threads.run(lambda: _tables(settings, limit, after))

    @router.get(
        "/tables/{namespace}/{topic}",
        operation_id="describe_table",
        response_model=TableDescription,
        responses=errors(404),
    )
    async def describe_table(name: TopicPath) -> dict[str, Any]:
        """The table of a topic: columns, partitioning, properties, snapshots, and the files of each partition."""
        return await threads.run(lambda: _table(settings, str(name)))

    return router


def _pipeline(settings: Settings, limit: int, after: str | None) -> dict[str, Any]:
    with needs():
        from frazil.pipeline.status import pipeline_page
    found, more = pipeline_page(settings, SystemClock(), limit=limit, after=after)
    told = found.as_dict()
    return {**told, "next": told["topics"][-1]["topic"] if more else None}


def _tables(settings: Settings, limit: int, after: str | None) -> dict[str, Any]:
    upkeep = _upkeep(settings)
    names, more = page(upkeep.names(), str, limit, after)
    return {"items": [upkeep.summary(name).as_dict() for name in names], "next": str(names[-1]) if more else None}


def _table(settings: Settings, topic: str) -> dict[str, Any]:
    upkeep = _upkeep(settings)
    return upkeep.description(upkeep.names(topic)[0])


def _upkeep(settings: Settings) -> Upkeep:
    with needs():
        from frazil.lake.upkeep import Upkeep
    return Upkeep(settings)
