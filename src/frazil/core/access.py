"""Rights: an action on a resource. Doors say which rights a call needs; `frazil.node.access` decides who has them.

A resource has a kind and a name. Names are paths, so that one pattern covers a namespace and all that is in it:

    server         /
    namespace      /shop
    topic          /shop/orders           its partitions have the rights of the topic
    table          /shop/orders           the Iceberg table shop.orders
    subscription   /shop/orders/billing
    schema         the subject, as it is
"""

from __future__ import annotations

import enum
from functools import lru_cache
from typing import NamedTuple

from frazil.core.errors import InvalidName
from frazil.core.names import TopicName


class Action(enum.StrEnum):
    DESCRIBE = "describe"  # know that it exists, its settings and figures
    READ = "read"  # read rows
    PRODUCE = "produce"  # publish rows
    CONSUME = "consume"  # subscribe, receive and acknowledge
    CREATE = "create"
    ALTER = "alter"
    DELETE = "delete"
    OPERATE = "operate"  # metrics, jobs, maintenance, the mover
    GRANT = "grant"  # keys, roles and bindings


class ResourceKind(enum.StrEnum):
    SERVER = "server"
    NAMESPACE = "namespace"
    TOPIC = "topic"
    TABLE = "table"
    SUBSCRIPTION = "subscription"
    SCHEMA = "schema"


class Resource(NamedTuple):
    kind: ResourceKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Right(NamedTuple):
    action: Action
    resource: Resource


SERVER = Resource(ResourceKind.SERVER, "/")
WRITES = frozenset({Action.PRODUCE, Action.CREATE})
NAME_LENGTH_MAX = 1024
"""Longer than the name of any resource that exists. A caller chooses names, so nothing remembers longer ones."""


def is_reserved(resource: Resource) -> bool:
    """Whether a resource belongs to a tenant whose name begins with `_`: only this process itself writes there."""
    return resource.name.startswith("/_") and "." in resource.name.split("/", 2)[1]


def namespace(name: str) -> Resource:
    return Resource(ResourceKind.NAMESPACE, f"/{name}")


def topic(name: str) -> Resource:
    """The resource of a topic by its full name, or of the topic that a partition belongs to.

    A name that is no topic's is its own resource: the call is refused for the name afterwards, or for the right.
    """
    return _topic(name) if len(name) <= NAME_LENGTH_MAX else Resource(ResourceKind.TOPIC, name)


@lru_cache(maxsize=4096)
def _topic(name: str) -> Resource:
    return Resource(ResourceKind.TOPIC, _base(name))


def subscription(topic_name: str, name: str) -> Resource:
    return Resource(ResourceKind.SUBSCRIPTION, f"{_base(topic_name)}/{name}")


def table(namespace_name: str, name: str) -> Resource:
    return Resource(ResourceKind.TABLE, _base(f"/{namespace_name}/{name}"))


def schema(subject: str) -> Resource:
    return Resource(ResourceKind.SCHEMA, subject)


def _base(name: str) -> str:
    if len(name) > NAME_LENGTH_MAX:
        return name
    try:
        return str(TopicName.parse(name).partition_of()[0])
    except InvalidName:
        return name


@lru_cache(maxsize=4096)
def _parts(pattern: str) -> tuple[str, ...]:
    return tuple(pattern.split("*"))


def covers(pattern: str, name: str) -> bool:
    """Whether a pattern covers a name: `*` stands for any characters, also for `/`; all others for themselves.

    Takes linear time: a caller chooses the name, and a regular expression with several `.*` would backtrack.
    """
    first, *middle = _parts(pattern)
    if not middle:
        return name == first
    last = middle.pop()
    position, end = len(first), len(name) - len(last)
    if position > end or not name.startswith(first) or not name.endswith(last):
        return False
    for part in middle:
        found = name.find(part, position, end)
        if found < 0:
            return False
        position = found + len(part)
    return True


def matches(pattern: str, resource: Resource) -> bool:
    """Whether a pattern covers a resource. `/shop/*` also covers the namespace `/shop` itself."""
    if covers(pattern, resource.name):
        return True
    return resource.kind is ResourceKind.NAMESPACE and covers(pattern, f"{resource.name}/")
