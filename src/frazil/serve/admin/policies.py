"""Policies of subscriptions: shown, set, and set back to the broker's defaults."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from frazil.broker.delivery.own_policy import ACK_TIMEOUT_MS, BYTES, DELAY_MS, MESSAGES, REDELIVERIES, OwnPolicy
from frazil.core.broker_settings import Backoff, Poison
from frazil.serve.admin.models import Given, IsNumber
from frazil.serve.admin.openapi import errors
from frazil.serve.admin.parts import AdminParts
from frazil.serve.admin.paths import TOPIC_EXTRA, SubscriptionPath, TopicPath

BackoffName = Literal["fixed", "exponential"]
PoisonName = Literal["block", "drop", "dead_letter"]
_Delay = Annotated[int, Field(ge=DELAY_MS.min, le=DELAY_MS.max), IsNumber]


class Policy(Given):
    """What is left out, or null, is as the broker's settings have it."""

    max_unacked_messages: Annotated[int, Field(ge=MESSAGES.min, le=MESSAGES.max), IsNumber] | None = None
    max_unacked_bytes: Annotated[int, Field(ge=BYTES.min, le=BYTES.max), IsNumber] | None = None
    ack_timeout_ms: Annotated[int, Field(ge=ACK_TIMEOUT_MS.min, le=ACK_TIMEOUT_MS.max), IsNumber] | None = None
    redeliveries_max: Annotated[int, Field(ge=REDELIVERIES.min, le=REDELIVERIES.max), IsNumber] | None = None
    redelivery_delay_ms: _Delay | None = None
    redelivery_delay_ms_max: _Delay | None = None
    backoff: BackoffName | None = None
    poison: PoisonName | None = None
    dead_letter_topic: Annotated[str, Field(json_schema_extra=TOPIC_EXTRA)] | None = Field(
        None, description="null: the topic's name with `-dead-letter`"
    )

    def as_own(self) -> OwnPolicy:
        given = self.model_dump()
        backoff = None if self.backoff is None else Backoff(self.backoff)
        poison = None if self.poison is None else Poison(self.poison)
        return OwnPolicy(**{**given, "backoff": backoff, "poison": poison})


class PolicyModel(BaseModel):
    max_unacked_messages: int
    max_unacked_bytes: int
    ack_timeout_ms: int
    redeliveries_max: int
    redelivery_delay_ms: int
    redelivery_delay_ms_max: int
    backoff: BackoffName
    poison: PoisonName
    dead_letter_topic: str


class SubscriptionPolicy(BaseModel):
    """`policy` is what was set for the subscription, null where nothing was; `effective` is what holds."""

    topic: str
    subscription: str
    policy: Policy
    effective: PolicyModel


def policies_router(parts: AdminParts) -> APIRouter:
    router = APIRouter(
        prefix="/v1/topics/{namespace}/{topic}/subscriptions/{subscription}/policy",
        tags=["subscriptions"],
        responses=errors(400, 404, 409, 503),
    )

    @router.get("", operation_id="get_subscription_policy", response_model=SubscriptionPolicy)
    async def get_subscription_policy(name: TopicPath, subscription: SubscriptionPath) -> dict[str, Any]:
        """How a subscription delivers: window, redeliveries, and what becomes of poison messages."""
        return parts.admin.policy(name, subscription).as_dict()

    @router.put("", operation_id="set_subscription_policy", response_model=SubscriptionPolicy)
    async def set_subscription_policy(
        name: TopicPath, subscription: SubscriptionPath, wanted: Policy
    ) -> dict[str, Any]:
        """A policy of its own, in place of the one that it has. Durable when it is answered; it holds from then on."""
        own = wanted.as_own()
        return (await parts.admin.set_policy(name, subscription, lambda _: own)).as_dict()

    @router.delete("", operation_id="reset_subscription_policy", response_model=SubscriptionPolicy)
    async def reset_subscription_policy(name: TopicPath, subscription: SubscriptionPath) -> dict[str, Any]:
        """Back to the defaults of the broker's settings."""
        return (await parts.admin.set_policy(name, subscription, lambda _: OwnPolicy())).as_dict()

    return router
