"""The rights that routes need, from the names in their paths.

What belongs to a topic needs `describe` on the topic too: otherwise its errors would tell whether the topic exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote

from frazil.core import access
from frazil.core.access import SERVER, Action, Right
from frazil.doors.http.access import Rights
from frazil.doors.http.admin.paths import NamespacePath, SubjectPath, SubscriptionPath, TopicPath

STATE_OF_SERVER = (Right(Action.DESCRIBE, SERVER), Right(Action.OPERATE, SERVER))
"""One of them is needed to see the state of the server."""


def on_topic(action: Action) -> Rights:
    async def rights(name: TopicPath) -> Sequence[Right]:
        return [Right(action, access.topic(str(name)))]

    return rights


def on_table(action: Action) -> Rights:
    async def rights(name: TopicPath) -> Sequence[Right]:
        return [Right(action, access.table(name.namespace, name.topic))]

    return rights


def on_subscription(action: Action) -> Rights:
    async def rights(name: TopicPath, subscription: SubscriptionPath) -> Sequence[Right]:
        return [
            Right(Action.DESCRIBE, access.topic(str(name))),
            Right(action, access.subscription(str(name), subscription)),
        ]

    return rights


def on_schema(action: Action) -> Rights:
    async def rights(subject: SubjectPath) -> Sequence[Right]:
        return [Right(action, access.schema(subject))]

    return rights


def on_namespace(action: Action) -> Rights:
    async def rights(namespace: NamespacePath) -> Sequence[Right]:
        return [Right(action, access.namespace(unquote(namespace)))]

    return rights


async def state_of_server() -> Sequence[Right]:
    return STATE_OF_SERVER


def to_know(topic: str | None) -> Sequence[Right]:
    """Return the right to name a topic in a request: the answer tells whether it exists."""
    return [] if topic is None else [Right(Action.DESCRIBE, access.topic(topic))]


def on_server(action: Action) -> Rights:
    async def rights() -> Sequence[Right]:
        return [Right(action, SERVER)]

    return rights
