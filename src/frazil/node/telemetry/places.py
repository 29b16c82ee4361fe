"""A place: the dataset of a tenant that a request is for, and the topics of its signals."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from frazil.core import access
from frazil.core.access import Resource
from frazil.core.names import TopicName
from frazil.telemetry.signals import Signal, topic_of_signal


class TenantPlace(NamedTuple):
    tenant: str
    dataset: str


class Route(NamedTuple):
    """The topic of a signal, and the resource that its rights are for."""

    topic: TopicName
    resource: Resource


@lru_cache(maxsize=16_384)
def route_of(place: TenantPlace, signal: Signal) -> Route:
    """Return the topic for requests of a signal; raises `InvalidName`."""
    topic = topic_of_signal(*place, signal)
    return Route(topic, access.topic(str(topic)))
