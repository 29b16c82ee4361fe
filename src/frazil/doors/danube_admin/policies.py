"""Policies of subscriptions in Danube's terms: the failure policy, and the dispatch config, which is the window."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from frazil.core import access
from frazil.core.access import Action, Right
from frazil.core.errors import InvalidInput
from frazil.core.names import TopicName
from frazil.core.principal import ANONYMOUS
from frazil.core.settings.broker import Backoff, Poison
from frazil.doors.admission import who
from frazil.doors.calls import calling
from frazil.doors.danube_admin import danube_admin_pb2 as pb
from frazil.doors.danube_admin.admin_call import AdminCall
from frazil.doors.rights import of_subscription, on_subscription
from frazil.node.node import Node
from frazil.node.topics.dead_letters import dead_letter_topic
from frazil.node.types.broker import Kind, OwnPolicy

_BACKOFFS = {pb.Fixed: Backoff.FIXED, pb.Exponential: Backoff.EXPONENTIAL}
_POISONS = {pb.DeadLetter: Poison.DEAD_LETTER, pb.Block: Poison.BLOCK, pb.Drop: Poison.DROP}
_KINDS = (Kind.EXCLUSIVE, Kind.SHARED, Kind.FAILOVER, Kind.KEY_SHARED)
_NAMES = {
    "redeliveries_max": "max_redelivery_count",
    "redelivery_delay_ms": "base_redelivery_delay_ms",
    "redelivery_delay_ms_max": "max_redelivery_delay_ms",
}
"""Danube's names of our fields, for messages."""
_OURS = re.compile(rf"\b(?:{'|'.join(_NAMES)})\b")


class PolicyCalls:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._admin = node.admin(ANONYMOUS)

    def calls(self) -> dict[str, AdminCall]:
        alter = on_subscription("topic", "subscription", Action.ALTER)
        describe = on_subscription("topic", "subscription", Action.DESCRIBE)
        return {
            "SetSubscriptionFailurePolicy": AdminCall(self._set_failure_policy, _failure_policy_rights, "topic"),
            "GetSubscriptionFailurePolicy": AdminCall(self._failure_policy, describe, "topic"),
            "SetSubscriptionDispatchConfig": AdminCall(self._set_dispatch_config, alter, "topic"),
            "GetSubscriptionDispatchConfig": AdminCall(self._dispatch_config, describe, "topic"),
        }

    async def _set_failure_policy(self, request: Any) -> Any:
        """Set the whole failure policy of the request; the window stays."""
        wanted = _given(request, "failure_policy")
        backoff = _choice(_BACKOFFS, wanted.backoff_strategy, "backoff_strategy")
        poison = _choice(_POISONS, wanted.poison_policy, "poison_policy")

        def changed(own: OwnPolicy) -> OwnPolicy:
            return replace(
                own,
                redeliveries_max=wanted.max_redelivery_count,
                ack_timeout_ms=wanted.ack_timeout_ms,
                redelivery_delay_ms=wanted.base_redelivery_delay_ms,
                redelivery_delay_ms_max=wanted.max_redelivery_delay_ms,
                backoff=backoff,
                poison=poison,
                dead_letter_topic=wanted.dead_letter_topic if wanted.HasField("dead_letter_topic") else None,
            )

        await self._set(request, changed)
        return pb.SubscriptionResponse(success=True)

    async def _set_dispatch_config(self, request: Any) -> Any:
        count = _given(request, "dispatch_config").max_unacked_messages
        await self._set(request, lambda own: replace(own, max_unacked_messages=count), keeps_letters=True)
        return pb.SubscriptionResponse(success=True)

    async def _set(self, request: Any, change: Any, *, keeps_letters: bool = False) -> None:
        admin, topic = self._node.admin(who(), calling.get().peer()), TopicName.parse(request.topic)
        try:
            await admin.set_policy(topic, request.subscription, change, keeps_letters=keeps_letters)
        except InvalidInput as error:
            message = _OURS.sub(lambda found: _NAMES[found[0]], error.message)
            field = error.fields.get("field", "")
            raise InvalidInput(message, **{**error.fields, "field": _NAMES.get(field, field)}) from None

    async def _failure_policy(self, request: Any) -> Any:
        """Return the effective policy. A non-reliable topic has no policies."""
        topic = TopicName.parse(request.topic)
        kind = _KINDS.index(Kind(self._admin.subscription(topic, request.subscription).type))
        if not self._admin.topic(topic).reliable:
            return pb.GetSubscriptionFailurePolicyResponse(subscription_type=kind)
        found = self._admin.policy(topic, request.subscription)
        holds = found.effective
        policy = pb.SubscriptionFailurePolicy(
            max_redelivery_count=holds.redeliveries_max,
            ack_timeout_ms=holds.ack_timeout_us // 1_000,
            base_redelivery_delay_ms=holds.delay_us // 1_000,
            max_redelivery_delay_ms=holds.delay_us_max // 1_000,
            backoff_strategy=_number(_BACKOFFS, holds.backoff),
            dead_letter_topic=holds.dead_letter_topic,
            poison_policy=_number(_POISONS, holds.poison),
        )
        return pb.GetSubscriptionFailurePolicyResponse(failure_policy=policy, subscription_type=kind)

    async def _dispatch_config(self, request: Any) -> Any:
        topic = TopicName.parse(request.topic)
        self._admin.subscription(topic, request.subscription)
        if not self._admin.topic(topic).reliable:
            return pb.GetSubscriptionDispatchConfigResponse()
        count = self._admin.policy(topic, request.subscription).effective.window_max
        config = pb.SubscriptionDispatchConfig(max_unacked_messages=count)
        return pb.GetSubscriptionDispatchConfigResponse(dispatch_config=config)


def _failure_policy_rights(request: Any) -> Sequence[Right]:
    """The broker writes dead letters for the caller that sets the policy. `LetterTopics` asks for more."""
    rights = of_subscription(request.topic, request.subscription, Action.ALTER)
    wanted = request.failure_policy
    if wanted.HasField("dead_letter_topic"):
        return *rights, Right(Action.PRODUCE, access.topic(wanted.dead_letter_topic))
    if request.HasField("failure_policy") and wanted.poison_policy == pb.DeadLetter:
        return *rights, Right(Action.PRODUCE, access.topic(str(dead_letter_topic(TopicName.parse(request.topic)))))
    return rights


def _given(request: Any, field: str) -> Any:
    if not request.HasField(field):
        raise InvalidInput(f"{field}: must be given", field=field)
    return getattr(request, field)


def _choice(choices: dict[Any, Any], number: int, field: str) -> Any:
    if number not in choices:
        raise InvalidInput(f"{field}: must be 0 to {len(choices) - 1}, not {number}", field=field)
    return choices[number]


def _number(choices: dict[Any, Any], wanted: Backoff | Poison) -> Any:
    return next(number for number, choice in choices.items() if choice is wanted)
