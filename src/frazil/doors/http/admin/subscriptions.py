"""Producers, subscriptions and consumers: list, describe, reset."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter

from frazil.core import access
from frazil.core.access import Action
from frazil.doors.http.access import Who, needs, shown
from frazil.doors.http.admin.cluster.owners import AT_OWNER
from frazil.doors.http.admin.models import (
    ConsumerPage,
    DeletedSubscription,
    ProducerPage,
    Reset,
    SubscriptionModel,
    SubscriptionPage,
    ToEnd,
    ToOffset,
)
from frazil.doors.http.admin.openapi import errors
from frazil.doors.http.admin.paging import LIMIT_DEFAULT, After, Limit, page
from frazil.doors.http.admin.paths import SubscriptionPath, TopicPath
from frazil.doors.http.admin.rights import on_subscription, on_topic
from frazil.node.node import Node
from frazil.node.types.log import Start


def subscriptions_router(node: Node) -> APIRouter:
    router = APIRouter(
        prefix="/v1/topics/{namespace}/{topic}", tags=["subscriptions"], responses=errors(400, 404, 409, 503)
    )
    _add_lists(router, node)
    _add_one(router, node)
    _add_reset(router, node)
    return router


def _add_lists(router: APIRouter, node: Node) -> None:
    @router.get(
        "/producers",
        operation_id="list_producers",
        response_model=ProducerPage,
        dependencies=[needs(on_topic(Action.DESCRIBE)), AT_OWNER],
    )
    async def list_producers(
        who: Who, name: TopicPath, limit: Limit = LIMIT_DEFAULT, after: After = None
    ) -> dict[str, Any]:
        """List all producers that the topic ever had; the broker does not know which are still connected."""
        names, more = page(node.admin(who).topic(name).producers, str, limit, after)
        items = [one.as_dict() for one in node.admin(who).producers(name, names)]
        return {"items": items, "next": names[-1] if more else None}

    @router.get(
        "/subscriptions",
        operation_id="list_subscriptions",
        response_model=SubscriptionPage,
        dependencies=[needs(on_topic(Action.DESCRIBE)), AT_OWNER],
    )
    async def list_subscriptions(
        who: Who, name: TopicPath, limit: Limit = LIMIT_DEFAULT, after: After = None
    ) -> dict[str, Any]:
        """List the subscriptions of a topic, each with its cursor, its lag and its messages in flight."""
        there = node.admin(who).topic(name).subscriptions
        visible = shown(node.gate, who, there, lambda one: access.subscription(str(name), one))
        names, more = page(visible, str, limit, after)
        items = [one.as_dict() for one in node.admin(who).subscriptions(name, names)]
        return {"items": items, "next": names[-1] if more else None}

    @router.get(
        "/subscriptions/{subscription}/consumers",
        operation_id="list_consumers",
        response_model=ConsumerPage,
        dependencies=[needs(on_subscription(Action.DESCRIBE)), AT_OWNER],
    )
    async def list_consumers(
        who: Who, name: TopicPath, subscription: SubscriptionPath, limit: Limit = LIMIT_DEFAULT, after: After = None
    ) -> dict[str, Any]:
        """List the consumers of a subscription, connected or not, with their messages in flight."""
        found, more = page(node.admin(who).consumers(name, subscription), lambda one: one.consumer, limit, after)
        return {"items": [one.as_dict() for one in found], "next": found[-1].consumer if more else None}


def _add_one(router: APIRouter, node: Node) -> None:
    @router.get(
        "/subscriptions/{subscription}",
        operation_id="describe_subscription",
        response_model=SubscriptionModel,
        dependencies=[needs(on_subscription(Action.DESCRIBE)), AT_OWNER],
    )
    async def describe_subscription(who: Who, name: TopicPath, subscription: SubscriptionPath) -> dict[str, Any]:
        """Show one subscription."""
        return node.admin(who).subscription(name, subscription).as_dict()

    @router.delete(
        "/subscriptions/{subscription}",
        operation_id="delete_subscription",
        response_model=DeletedSubscription,
        dependencies=[needs(on_subscription(Action.DELETE)), AT_OWNER],
    )
    async def delete_subscription(who: Who, name: TopicPath, subscription: SubscriptionPath) -> dict[str, Any]:
        """Delete a subscription and its consumers; their streams end. Subscribing again recreates it."""
        await node.admin(who).delete_subscription(name, subscription)
        return {"topic": str(name), "subscription": subscription, "deleted": True}


def _add_reset(router: APIRouter, node: Node) -> None:
    @router.post(
        "/subscriptions/{subscription}/reset",
        operation_id="reset_subscription",
        response_model=SubscriptionModel,
        dependencies=[needs(on_subscription(Action.ALTER)), AT_OWNER],
    )
    async def reset_subscription(
        who: Who, name: TopicPath, subscription: SubscriptionPath, wanted: Reset
    ) -> dict[str, Any]:
        """Move the cursor of a subscription, even to rows that only the table has. Durable when the call returns.

        Consumers stay connected. Earlier deliveries are void: late answers to them are ignored.
        """
        return (await node.admin(who).reset(name, subscription, _start(wanted))).as_dict()


def _start(wanted: Reset) -> Start:
    if isinstance(wanted, ToEnd):
        return wanted.to
    if isinstance(wanted, ToOffset):
        return wanted.offset
    return datetime.fromisoformat(wanted.time)
