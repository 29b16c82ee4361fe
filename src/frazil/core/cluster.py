"""Values about a cluster: its brokers, how evenly topics are spread, and planned moves of topics."""

from __future__ import annotations

import enum
import hashlib
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from frazil.core.names import TopicName

OVERLOADED_PART, UNDERLOADED_PART = 1.25, 0.75
"""A broker is overloaded above, and underloaded below, these parts of the mean load."""


class BrokerState(enum.StrEnum):
    ACTIVE = "active"
    DRAINING = "draining"
    """Its topics move to other brokers, and it gets no new ones."""
    GONE = "gone"
    """Its lease has ended. It may still own topics, whose rows are on its disk."""


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A broker of the cluster, as all brokers know it."""

    broker_id: str
    addresses: Mapping[str, str]
    """The address of each door, by its name: `http`, `flight`, `danube`, `admin`. For other hosts, `advertised` is
    that of `flight`, and `http_advertised` that of `http`."""
    state: BrokerState = BrokerState.ACTIVE
    topics: int = 0
    """Number of topics and partitions that it owns."""
    load: float = 0.0
    """The sum of the loads of its topics; see `frazil.node.ownership.moves.load`."""

    @property
    def number(self) -> int:
        """The id as an unsigned 64-bit number, for protocols that name brokers by numbers."""
        return broker_number(self.broker_id)


def broker_number(broker_id: str) -> int:
    return int.from_bytes(hashlib.sha256(broker_id.encode()).digest()[:8], "big")


def flight_address(addresses: Mapping[str, str]) -> str | None:
    """Return the address of a broker's Flight door for other hosts."""
    return addresses.get("advertised") or addresses.get("flight")


def http_address(addresses: Mapping[str, str]) -> str | None:
    """Return the address of a broker's HTTP door for other hosts."""
    return addresses.get("http_advertised") or addresses.get("http")


@dataclass(frozen=True, slots=True)
class Balance:
    """How evenly load is spread over the active brokers."""

    brokers: tuple[BrokerInfo, ...]

    @property
    def loads(self) -> list[float]:
        return [one.load for one in self.brokers if one.state is BrokerState.ACTIVE]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.loads) if self.loads else 0.0

    @property
    def max(self) -> float:
        return max(self.loads, default=0.0)

    @property
    def min(self) -> float:
        return min(self.loads, default=0.0)

    @property
    def deviation(self) -> float:
        """The standard deviation of the loads."""
        return statistics.pstdev(self.loads) if self.loads else 0.0

    @property
    def variation(self) -> float:
        """The coefficient of variation: the deviation as a part of the mean; 0 without any load."""
        return self.deviation / self.mean if self.mean else 0.0

    def is_overloaded(self, broker: BrokerInfo) -> bool:
        return broker.load > OVERLOADED_PART * self.mean

    def is_underloaded(self, broker: BrokerInfo) -> bool:
        return broker.load < UNDERLOADED_PART * self.mean


@dataclass(slots=True)
class MoveCounts:
    """How many topics have come to a broker and gone from it since it started."""

    taken: int = 0
    """Opened to be served, also its own ones at the start."""
    given: int = 0
    failed: int = 0
    """Topics that could not be given away, and stayed."""


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """A move of a topic that would even the load out, or empty a broker."""

    topic: TopicName
    from_broker: str
    to_broker: str
    load: float
    """The load of the topic."""
    reason: str


@dataclass(frozen=True, slots=True)
class DrainReport:
    """What a drain of a broker has reached. Topics that have not moved stay where they are, and are served."""

    broker_id: str
    total: int
    moved: int
    failed: Mapping[str, str] = field(default_factory=dict)
    """Why a topic could not be moved, by its name."""

    @property
    def pending(self) -> int:
        return self.total - self.moved - len(self.failed)
