"""Producers, subscriptions and consumers: who there is, how far they are, and set elsewhere."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter

from frazil.log.positions import Start
from frazil.serve.admin.models import (
    ConsumerPage,
    DeletedSubscription,
    ProducerPage,
    Reset,
    SubscriptionModel,
    SubscriptionPage,
    ToEnd,
    ToOffset,
)
from frazil.serve.admin.openapi import errors
from frazil.serve.admin.paging import LIMIT_DEFAULT, After, Limit, page
from frazil.serve.admin.parts import AdminParts
from frazil.serve.admin.paths import SubscriptionPath, TopicPath


def subscriptions_router(parts: AdminParts) -> APIRouter:
    router = APIRouter(
        prefix="/v1/topics/{namespace}/{topic}", tags=["subscriptions"], responses=errors(400, 404, 409, 503)
    )

    @router.get("/producers", operation_id="list_producers", response_model=ProducerPage)
    async def list_producers(name: TopicPath, limit: Limit = LIMIT_DEFAULT, after: After = None) -> dict[str, Any]:
        """Who has ever been made a producer of the topic; the broker does not know who is still there."""
        names, more = page(parts.admin.topic(name).producers, str, limit, after)
        shown = [one.as_dict() for one in parts.admin.producers(name, names)]
        return {"items": shown, "next": names[-1] if more else None}

    @router.get("/subscriptions", operation_id="list_subscriptions", response_model=SubscriptionPage)
    async def list_subscriptions(name: TopicPath, limit: Limit = LIMIT_DEFAULT, after: After = None) -> dict[str, Any]:
        """The subscriptions of a topic, each with its cursor, its lag and what is in flight."""
        names, more = page(parts.admin.topic(name).subscriptions, str, limit, after)
        shown = [one.as_dict() for one in parts.admin.subscriptions(name, names)]
        return {"items": shown, "next": names[-1] if more else None}

    @router.get("/subscriptions/{subscription}", operation_id="describe_subscription", response_model=SubscriptionModel)
    async def describe_subscription(name: TopicPath, subscription: SubscriptionPath) -> dict[str, Any]:
        """One subscription."""
        return parts.admin.subscription(name, subscription).as_dict()

    @router.delete(
        "/subscriptions/{subscription}", operation_id="delete_subscription", response_model=DeletedSubscription
    )
    async def delete_subscription(name: TopicPath, subscription: SubscriptionPath) -> dict[str, Any]:
        """Forget a subscription and its consumers; their streams end. One that subscribes again makes it anew."""
        await parts.admin.delete_subscription(name, subscription)
        return {"topic": str(name), "subscription": subscription, "deleted": True}

    @router.post(
        "/subscriptions/{subscription}/reset", operation_id="reset_subscription", response_model=SubscriptionModel
    )
    async def reset_subscription(name: TopicPath, subscription: SubscriptionPath, wanted: Reset) -> dict[str, Any]:
        """Let a subscription go on elsewhere, also at what only the table has. Durable when it is answered.

        Consumers stay connected. What was delivered before is void: late answers to it count for nothing.
        """
        return (await parts.admin.reset(name, subscription, _start(wanted))).as_dict()

    @router.get("/subscriptions/{subscription}/consumers", operation_id="list_consumers", response_model=ConsumerPage)
    async def list_consumers(
        name: TopicPath, subscription: SubscriptionPath, limit: Limit = LIMIT_DEFAULT, after: After = None
    ) -> dict[str, Any]:
        """The consumers of a subscription, connected or not, and what each has in hand."""
        found, more = page(parts.admin.consumers(name, subscription), lambda one: one.consumer, limit, after)
        return {"items": [one.as_dict() for one in found], "next": found[-1].consumer if more else None}

    return router


def _start(wanted: Reset) -> Start:
    if isinstance(wanted, ToEnd):
        return wanted.to
    if isinstance(wanted, ToOffset):
        return wanted.offset
    return datetime.fromisoformat(wanted.time)
