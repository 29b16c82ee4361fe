"""Show, set and reset the policies of subscriptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from frazil.core import access
from frazil.core.access import Action, Right
from frazil.core.settings.broker import Backoff, Poison
from frazil.doors.http.access import Peer, Who, needs
from frazil.doors.http.admin.cluster.owners import AT_OWNER
from frazil.doors.http.admin.models import Given, IsNumber
from frazil.doors.http.admin.openapi import errors
from frazil.doors.http.admin.paths import TOPIC_EXTRA, SubscriptionPath, TopicPath
from frazil.doors.http.admin.rights import on_subscription
from frazil.node.node import Node
from frazil.node.topics.dead_letters import dead_letter_topic
from frazil.node.types.broker import ACK_TIMEOUT_MS, BYTES, DELAY_MS, MESSAGES, REDELIVERIES, OwnPolicy

BackoffName = Literal["fixed", "exponential"]
PoisonName = Literal["block", "drop", "dead_letter"]
_Delay = Annotated[int, Field(ge=DELAY_MS.min, le=DELAY_MS.max), IsNumber]


class Policy(Given):
    """Omitted or null fields are as in the broker's settings."""

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
    """`policy` is what was set for the subscription, null if nothing was; `effective` is what applies."""

    topic: str
    subscription: str
    policy: Policy
    effective: PolicyModel


def policies_router(node: Node) -> APIRouter:
    router = APIRouter(
        prefix="/v1/topics/{namespace}/{topic}/subscriptions/{subscription}/policy",
        tags=["subscriptions"],
        responses=errors(400, 404, 409, 503),
    )

    async def letters(name: TopicPath, wanted: Policy) -> Sequence[Right]:
        """The broker writes dead letters for the caller that sets the policy. `LetterTopics` asks for more."""
        own = wanted.as_own()
        if not own.sends_letters:
            return []
        target = str(dead_letter_topic(name)) if own.dead_letter_topic is None else own.dead_letter_topic
        return [Right(Action.PRODUCE, access.topic(target))]

    @router.get(
        "",
        operation_id="get_subscription_policy",
        response_model=SubscriptionPolicy,
        dependencies=[needs(on_subscription(Action.DESCRIBE)), AT_OWNER],
    )
    async def get_subscription_policy(who: Who, name: TopicPath, subscription: SubscriptionPath) -> dict[str, Any]:
        """Show how a subscription delivers: window, redeliveries, and the handling of poison messages."""
        return node.admin(who).policy(name, subscription).as_dict()

    @router.put(
        "",
        operation_id="set_subscription_policy",
        response_model=SubscriptionPolicy,
        dependencies=[needs(on_subscription(Action.ALTER)), needs(letters), AT_OWNER],
    )
    async def set_subscription_policy(
        who: Who, peer: Peer, name: TopicPath, subscription: SubscriptionPath, wanted: Policy
    ) -> dict[str, Any]:
        """Replace the subscription's own policy. Durable when the call returns, and effective from then on.

        With security, a dead-letter topic that does not exist is created, and charged to the caller.
        """
        own = wanted.as_own()
        return (await node.admin(who, peer).set_policy(name, subscription, lambda _: own)).as_dict()

    @router.delete(
        "",
        operation_id="reset_subscription_policy",
        response_model=SubscriptionPolicy,
        dependencies=[needs(on_subscription(Action.ALTER)), AT_OWNER],
    )
    async def reset_subscription_policy(who: Who, name: TopicPath, subscription: SubscriptionPath) -> dict[str, Any]:
        """Restore the defaults of the broker's settings."""
        return (await node.admin(who).set_policy(name, subscription, lambda _: OwnPolicy())).as_dict()

    return router
