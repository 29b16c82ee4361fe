"""A producer of a topic: known by name for good."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from frazil.broker.topic import BrokerTopic


@dataclass(slots=True)
class Producer:
    id: int
    name: str
    topic: BrokerTopic
