"""List, describe, create and delete topics; their partitions and retention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import pyarrow as pa
from fastapi import APIRouter, Query

from frazil.core import access
from frazil.core.access import Action, Right
from frazil.core.errors import InvalidInput, TopicNotFound
from frazil.core.names import TopicName
from frazil.core.principal import Principal
from frazil.core.rows.columns import columns_schema, schema_from_text
from frazil.core.settings import RetentionSettings
from frazil.doors.http.access import Who, needs, shown
from frazil.doors.http.admin.cluster.owners import AT_OWNER, TopicViews
from frazil.doors.http.admin.models import (
    DeletedTopic,
    MadeTopic,
    NamePage,
    NewTopic,
    Retention,
    TopicDescription,
    TopicPage,
    TopicRetention,
)
from frazil.doors.http.admin.openapi import errors
from frazil.doors.http.admin.paging import LIMIT_DEFAULT, AfterTopic, Limit, page
from frazil.doors.http.admin.paths import TopicPath
from frazil.doors.http.admin.rights import on_topic
from frazil.doors.owning import Owning
from frazil.node.node import Node


def topics_router(node: Node) -> APIRouter:
    router = APIRouter(prefix="/v1/topics", tags=["topics"])
    _add_list(router, node)
    _add_create(router, node)
    _add_describe(router, node)
    _add_delete(router, node)
    _add_partitions(router, node)
    _add_retention(router, node)
    return router


def _add_list(router: APIRouter, node: Node) -> None:
    views = TopicViews(node)

    @router.get(
        "",
        operation_id="list_topics",
        response_model=TopicPage,
        responses=errors(400, 503),
        dependencies=[needs()],
    )
    def list_topics(who: Who, limit: Limit = LIMIT_DEFAULT, after: AfterTopic = None) -> dict[str, Any]:
        """List all topics of the cluster, sorted by name. Table figures are those of the mover's last report."""
        last = None if after is None else TopicName.parse(after)
        visible = shown(node.gate, who, views.names(who), lambda name: access.topic(str(name)))
        names, more = page(visible, lambda name: name, limit, last)
        return {"items": views.summaries(who, names), "next": str(names[-1]) if more else None}


def _add_create(router: APIRouter, node: Node) -> None:
    async def rights(wanted: NewTopic) -> Sequence[Right]:
        return [Right(Action.CREATE, access.topic(wanted.topic))]

    @router.post(
        "",
        operation_id="create_topic",
        status_code=201,
        response_model=MadeTopic,
        responses=errors(400, 409, 503),
        dependencies=[needs(rights)],
    )
    async def create_topic(who: Who, wanted: NewTopic) -> dict[str, Any]:
        """Create a topic, or all its partitions: all or none."""
        base, owning = TopicName.parse(wanted.topic), Owning(node)
        if owning.may_tell(who, base):
            owning.check_family(base)
        schema = _own_schema(wanted)
        made = await node.create_topic(
            who,
            base,
            partitions=wanted.partitions or None,
            schema=schema,
            reliable=wanted.reliable,
            retention=_settings(wanted.retention),
            ack=wanted.ack,
        )
        topics, log_id = node.topics(who), None
        if wanted.reliable and not wanted.partitions:
            log_id = await topics.run(topics.log_id, base)
        names = [str(name) for name in made] if wanted.partitions else []
        return {"topic": str(base), "log_id": log_id, "typed": schema is not None, "partitions": names}


def _add_describe(router: APIRouter, node: Node) -> None:
    views = TopicViews(node)

    @router.get(
        "/{namespace}/{topic}",
        operation_id="describe_topic",
        response_model=TopicDescription,
        responses=errors(400, 404, 503),
        dependencies=[needs(on_topic(Action.DESCRIBE))],
    )
    def describe_topic(who: Who, name: TopicPath) -> dict[str, Any]:
        """Show a topic, its log, its table and its users; or the sums of its partitions."""
        return views.describe(who, name)


def _add_delete(router: APIRouter, node: Node) -> None:
    @router.delete(
        "/{namespace}/{topic}",
        operation_id="delete_topic",
        response_model=DeletedTopic,
        responses=errors(400, 404, 409, 503),
        dependencies=[needs(on_topic(Action.DELETE)), AT_OWNER],
    )
    async def delete_topic(
        who: Who,
        name: TopicPath,
        force: Annotated[bool, Query(description="also delete its subscriptions and producers")] = False,
    ) -> dict[str, Any]:
        """Delete a topic, or all its partitions, and all rows of the log, permanently. The table is kept."""
        topics = node.topics(who)
        messages = await topics.run(topics.log_rows, name)
        await node.delete_topic(who, name, force=force)
        return {"topic": str(name), "deleted": True, "messages": messages}


def _add_partitions(router: APIRouter, node: Node) -> None:
    views = TopicViews(node)

    @router.get(
        "/{namespace}/{topic}/partitions",
        operation_id="list_partitions",
        response_model=NamePage,
        responses=errors(400, 404, 503),
        dependencies=[needs(on_topic(Action.DESCRIBE))],
    )
    def list_partitions(
        who: Who, name: TopicPath, limit: Limit = LIMIT_DEFAULT, after: AfterTopic = None
    ) -> dict[str, Any]:
        """List the partitions of a topic in order; the topic itself if it has none."""
        last = None if after is None else TopicName.parse(after).partition_of()[1]
        there = views.family(who, name)
        numbers = {one.partition_of()[1]: one for one in there if one != name and one.partition_of()[0] == name}
        if not numbers and name not in there:
            raise TopicNotFound(str(name))
        if not numbers:
            return {"items": [str(name)], "next": None}
        found, more = page(numbers, lambda number: number, limit, last)
        names = [str(numbers[number]) for number in found]
        return {"items": names, "next": names[-1] if more else None}


def _add_retention(router: APIRouter, node: Node) -> None:
    path, failing = "/{namespace}/{topic}/retention", errors(400, 404, 503)
    describing = [needs(on_topic(Action.DESCRIBE)), AT_OWNER]
    altering = [needs(on_topic(Action.ALTER)), AT_OWNER]

    @router.get(
        path, operation_id="get_retention", response_model=TopicRetention, responses=failing, dependencies=describing
    )
    def get_retention(who: Who, name: TopicPath) -> dict[str, Any]:
        """Show how long the log keeps rows."""
        return _retention(node, who, name)

    @router.put(
        path, operation_id="set_retention", response_model=TopicRetention, responses=failing, dependencies=altering
    )
    def set_retention(who: Who, name: TopicPath, wanted: Retention) -> dict[str, Any]:
        """Set the topic's own retention."""
        node.topics(who).set_retention(str(name), _settings(wanted))
        return _retention(node, who, name)

    @router.delete(
        path, operation_id="reset_retention", response_model=TopicRetention, responses=failing, dependencies=altering
    )
    def reset_retention(who: Who, name: TopicPath) -> dict[str, Any]:
        """Restore the retention of the settings."""
        node.topics(who).set_retention(str(name), None)
        return _retention(node, who, name)


def _retention(node: Node, who: Principal, name: TopicName) -> dict[str, Any]:
    own = node.topics(who).retention(name)
    effective = own or node.settings.wal.retention
    return {
        "topic": str(name),
        "retention": None if own is None else own.model_dump(),
        "effective": effective.model_dump(),
    }


def _settings(wanted: Retention | None) -> RetentionSettings | None:
    return None if wanted is None else wanted.as_settings()


def _own_schema(wanted: NewTopic) -> pa.Schema | None:
    """Return None for a message topic."""
    if wanted.columns is None and wanted.arrow_schema is None:
        return None
    if wanted.columns is not None and wanted.arrow_schema is not None:
        raise InvalidInput("arrow_schema: it says the same as schema; give one of them", field="arrow_schema")
    if wanted.arrow_schema is not None:
        return schema_from_text(wanted.arrow_schema, "arrow_schema")
    return columns_schema([one.model_dump() for one in wanted.columns or ()], "schema")
