"""The rights that requests need, by the fields that name their resources. For the tables of `frazil.doors.calls`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from frazil.core.access import SERVER, Action, Resource, Right, namespace, schema, subscription, topic
from frazil.doors.admission import Rights


def on_server(action: Action) -> Rights:
    rights = (Right(action, SERVER),)
    return lambda _: rights


def on_topic(field: str, *actions: Action) -> Rights:
    return lambda request: _all(actions, topic(getattr(request, field)))


def on_subscription(topic_field: str, field: str, action: Action) -> Rights:
    """See `of_subscription`."""

    def rights(request: Any) -> Sequence[Right]:
        name = getattr(request, topic_field)
        return of_subscription(name, getattr(request, field), action)

    return rights


def of_subscription(topic_name: str, name: str, action: Action) -> Sequence[Right]:
    """The action on the subscription, and a right on its topic: to consume the same, otherwise `describe`.

    Without `describe`, the errors would tell whether the topic exists.
    """
    on_its_topic = Action.CONSUME if action is Action.CONSUME else Action.DESCRIBE
    return Right(on_its_topic, topic(topic_name)), Right(action, subscription(topic_name, name))


def on_namespace(field: str, action: Action) -> Rights:
    return lambda request: (Right(action, namespace(getattr(request, field))),)


def on_schema(field: str, *actions: Action) -> Rights:
    return lambda request: _all(actions, schema(getattr(request, field)))


def _all(actions: Sequence[Action], resource: Resource) -> Sequence[Right]:
    return tuple(Right(action, resource) for action in actions)
