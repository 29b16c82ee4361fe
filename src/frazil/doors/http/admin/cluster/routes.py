"""The brokers of a cluster: list, drain and activate them, spread their load, and move topics between them.

Every broker answers these calls, whichever owns the topic. A server that is alone refuses changes with `cluster_off`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import unquote

from fastapi import APIRouter, Path
from pydantic import AfterValidator

from frazil.core import access
from frazil.core.access import SERVER, Action, Right
from frazil.core.cluster import BrokerState
from frazil.core.errors import BrokerNotFound, TopicNotFound
from frazil.doors.http.access import Who, needs, needs_any
from frazil.doors.http.admin.cluster.models import (
    BROKER_LENGTH_MAX,
    ActivateResult,
    BalanceModel,
    BrokerPage,
    Drain,
    DrainResult,
    Owners,
    Rebalance,
    RebalanceResult,
    TopicMove,
)
from frazil.doors.http.admin.cluster.owners import TopicViews
from frazil.doors.http.admin.openapi import errors
from frazil.doors.http.admin.paging import LIMIT_DEFAULT, After, Limit, page
from frazil.doors.http.admin.paths import TopicPath
from frazil.doors.http.admin.rights import on_server, on_topic, state_of_server
from frazil.doors.owning import Owning
from frazil.node.node import Node

BrokerPath = Annotated[str, AfterValidator(unquote), Path(min_length=1, max_length=BROKER_LENGTH_MAX)]


def cluster_router(node: Node) -> APIRouter:
    router = APIRouter(prefix="/v1/cluster", tags=["cluster"])
    _add_brokers(router, node)
    _add_draining(router, node)
    _add_balance(router, node)
    return router


def owners_router(node: Node) -> APIRouter:
    router = APIRouter(prefix="/v1/topics/{namespace}/{topic}", tags=["cluster"])
    _add_owner(router, node)
    _add_move(router, node)
    return router


def _add_brokers(router: APIRouter, node: Node) -> None:
    owning = Owning(node)

    @router.get(
        "/brokers",
        operation_id="list_brokers",
        response_model=BrokerPage,
        responses=errors(400),
        dependencies=[needs_any(state_of_server)],
    )
    async def list_brokers(limit: Limit = LIMIT_DEFAULT, after: After = None) -> dict[str, Any]:
        """List the brokers, also those that are gone and still own topics. A server that is alone lists itself."""
        ownership = owning.ownership
        leader, asked = ownership.leader(), ownership.broker_id
        found, more = page(ownership.brokers(), lambda one: one.broker_id, limit, after)
        items = [
            {
                "broker_id": one.broker_id,
                "state": one.state,
                "is_leader": one.broker_id == leader,
                "is_asked": one.broker_id == asked,
                "topics": one.topics,
                "load": one.load,
                "addresses": dict(one.addresses),
            }
            for one in found
        ]
        return {"items": items, "next": found[-1].broker_id if more else None}


def _add_draining(router: APIRouter, node: Node) -> None:
    owning, operating = Owning(node), [needs(on_server(Action.OPERATE))]

    @router.post(
        "/brokers/{broker}/drain",
        operation_id="drain_broker",
        response_model=DrainResult,
        responses=errors(400, 404, 409, 503),
        dependencies=operating,
    )
    async def drain_broker(who: Who, broker: BrokerPath, wanted: Drain) -> dict[str, Any]:
        """Move all topics of a broker to others, and give it no new ones until it is activated."""
        found = await owning.ownership.drain(broker, timeout_ms=wanted.timeout_ms, parallel_max=wanted.parallel_max)
        node.record_change(
            who, Action.OPERATE, f"broker {broker}", f"drained: {found.moved} of {found.total} topics moved"
        )
        return {
            "broker_id": found.broker_id,
            "total": found.total,
            "moved": found.moved,
            "pending": found.pending,
            "failed": dict(found.failed),
        }

    @router.post(
        "/brokers/{broker}/activate",
        operation_id="activate_broker",
        response_model=ActivateResult,
        responses=errors(400, 404, 409, 503),
        dependencies=operating,
    )
    async def activate_broker(who: Who, broker: BrokerPath) -> dict[str, Any]:
        """Let a drained broker get topics again."""
        await owning.ownership.activate(broker)
        node.record_change(who, Action.OPERATE, f"broker {broker}", "activated")
        return {"broker_id": broker, "state": BrokerState.ACTIVE}


def _add_balance(router: APIRouter, node: Node) -> None:
    owning = Owning(node)

    @router.get(
        "/balance",
        operation_id="get_balance",
        response_model=BalanceModel,
        responses=errors(400),
        dependencies=[needs_any(state_of_server)],
    )
    async def get_balance() -> dict[str, Any]:
        """Show how evenly the load is spread over the brokers."""
        found = owning.ownership.balance()
        brokers = [
            {
                "broker_id": one.broker_id,
                "state": one.state,
                "topics": one.topics,
                "load": one.load,
                "overloaded": found.is_overloaded(one),
                "underloaded": found.is_underloaded(one),
            }
            for one in found.brokers
        ]
        figures = {name: getattr(found, name) for name in ("mean", "max", "min", "deviation", "variation")}
        return {**figures, "brokers": brokers}

    @router.post(
        "/rebalance",
        operation_id="rebalance",
        response_model=RebalanceResult,
        responses=errors(400, 409, 503),
        dependencies=[needs(on_server(Action.OPERATE))],
    )
    async def rebalance(who: Who, wanted: Rebalance) -> dict[str, Any]:
        """Move topics from brokers with much load to those with little; or only plan it."""
        moves = await owning.ownership.rebalance(dry_run=wanted.dry_run, moves_max=wanted.moves_max)
        for one in () if wanted.dry_run else moves:
            node.record_change(who, Action.OPERATE, f"topic {one.topic}", f"moved to {one.to_broker}")
        names = ("from_broker", "to_broker", "load", "reason")
        found = [{"topic": str(one.topic), **{name: getattr(one, name) for name in names}} for one in moves]
        return {"dry_run": wanted.dry_run, "moves": found}


def _add_owner(router: APIRouter, node: Node) -> None:
    views = TopicViews(node)

    @router.get(
        "/owner",
        operation_id="get_owner",
        response_model=Owners,
        responses=errors(400, 404),
        dependencies=[needs(on_topic(Action.DESCRIBE))],
    )
    def get_owner(who: Who, name: TopicPath) -> dict[str, Any]:
        """Show which broker serves a topic, or each of its partitions. Every broker answers."""
        if not views.family(who, name):
            raise TopicNotFound(str(name))
        return {"owners": views.owners(name)}


def _add_move(router: APIRouter, node: Node) -> None:
    views, owning = TopicViews(node), Owning(node)

    async def rights(name: TopicPath, wanted: TopicMove) -> Sequence[Right]:
        """To accept the loss of rows is to delete them."""
        found = [Right(Action.OPERATE, SERVER), Right(Action.DESCRIBE, access.topic(str(name)))]
        return [*found, Right(Action.DELETE, access.topic(str(name)))] if wanted.accept_loss else found

    @router.post(
        "/move",
        operation_id="move_topic",
        response_model=Owners,
        responses=errors(400, 404, 409, 503),
        dependencies=[needs(rights)],
    )
    async def move_topic(who: Who, name: TopicPath, wanted: TopicMove) -> dict[str, Any]:
        """Move a topic, or all its partitions, to another broker. It goes on there at the next offset."""
        ownership = owning.ownership
        if ownership.is_clustered and wanted.to is not None:
            _check_broker(owning, wanted.to)
        if not await node.topics(who).run(views.family, who, name):
            raise TopicNotFound(str(name))
        for one in owning.of_call(name):
            await ownership.move(one, wanted.to, accept_loss=wanted.accept_loss)
            loss = ", without the rows that were not uploaded" if wanted.accept_loss else ""
            node.record_change(who, Action.OPERATE, f"topic {one}", owning.moved(one) + loss)
        return {"owners": views.owners(name)}


def _check_broker(owning: Owning, broker: str) -> None:
    if broker not in (one.broker_id for one in owning.ownership.brokers()):
        raise BrokerNotFound(broker)
