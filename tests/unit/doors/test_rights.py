"""The rights that calls on a subscription need."""

from __future__ import annotations

import pytest

from frazil.core.access import Action, Right, subscription, topic
from frazil.doors.rights import of_subscription


@pytest.mark.parametrize("action", list(Action))
def test_a_call_on_a_subscription_needs_a_right_on_its_topic_first(action: Action) -> None:
    """Without it, the error of a call would tell whether a hidden topic exists."""
    on_topic = Action.CONSUME if action is Action.CONSUME else Action.DESCRIBE
    assert tuple(of_subscription("/shop/orders", "billing", action)) == (
        Right(on_topic, topic("/shop/orders")),
        Right(action, subscription("/shop/orders", "billing")),
    )
