"""Tables, and the progress of each.

Modules that read tables are imported on first use: this takes a second, and the log must be available at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter

from frazil.core import access
from frazil.core.access import Action
from frazil.core.errors import TryLater
from frazil.core.names import TopicName
from frazil.core.principal import Principal
from frazil.doors.http.access import Who, needs, needs_any
from frazil.doors.http.admin.lake_models import PipelineStatus, TableDescription, TablePage
from frazil.doors.http.admin.openapi import errors
from frazil.doors.http.admin.paging import LIMIT_DEFAULT, After, AfterTopic, Limit, page
from frazil.doors.http.admin.paths import TopicPath
from frazil.doors.http.admin.rights import on_table, state_of_server
from frazil.node.node import Node

THREADS_MAX = 4
WAITING_MAX = 16


class LakeThreads:
    """A catalog may hang. A limited number of threads wait for it, and a limited number of callers for these;
    everything else continues."""

    def __init__(self) -> None:
        self._limiter = CapacityLimiter(THREADS_MAX)

    async def run(self, look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if self._limiter.statistics().tasks_waiting >= WAITING_MAX:
            raise TryLater(
                f"{WAITING_MAX} callers already wait for the catalog; check that it answers", limit=WAITING_MAX
            )
        return await to_thread.run_sync(look, limiter=self._limiter)


def tables_router(node: Node) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["tables"], responses=errors(400, 503))
    threads = LakeThreads()

    @router.get(
        "/pipeline",
        operation_id="pipeline_status",
        response_model=PipelineStatus,
        dependencies=[needs_any(state_of_server)],
    )
    async def pipeline_status(who: Who, limit: Limit = LIMIT_DEFAULT, after: AfterTopic = None) -> dict[str, Any]:
        """Show the mover's status, and the table progress of each moved topic, in pages."""
        if after is not None:
            TopicName.parse(after)
        return await threads.run(lambda: _pipeline(node, who, limit, after))

    @router.get("/tables", operation_id="list_tables", response_model=TablePage, dependencies=[needs()])
    async def list_tables(who: Who, limit: Limit = LIMIT_DEFAULT, after: After = None) -> dict[str, Any]:
        """List all tables that hold rows of a log."""
        return await threads.run(lambda: _tables(node, who, limit, after))

    @router.get(
        "/tables/{namespace}/{topic}",
        operation_id="describe_table",
        response_model=TableDescription,
        responses=errors(404),
        dependencies=[needs(on_table(Action.DESCRIBE))],
    )
    async def describe_table(who: Who, name: TopicPath) -> dict[str, Any]:
        """Show the table of a topic: columns, partitioning, properties, snapshots, and the files of each partition."""
        return await threads.run(lambda: _table(node, who, str(name)))

    return router


def _pipeline(node: Node, who: Principal, limit: int, after: str | None) -> dict[str, Any]:
    found, more = node.pipeline(who, limit, after)
    status = found.as_dict()
    return {**status, "next": status["topics"][-1]["topic"] if more else None}


def _tables(node: Node, who: Principal, limit: int, after: str | None) -> dict[str, Any]:
    tables = node.tables(who)
    visible = tables.names(
        shown=lambda name: node.gate.allows(who, Action.DESCRIBE, access.table(name.namespace, name.table))
    )
    names, more = page(visible, str, limit, after)
    return {"items": [tables.summary(name).as_dict() for name in names], "next": str(names[-1]) if more else None}


def _table(node: Node, who: Principal, topic: str) -> dict[str, Any]:
    tables = node.tables(who)
    return tables.description(tables.names(topic)[0])
