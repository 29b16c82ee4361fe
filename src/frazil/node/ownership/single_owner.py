"""The ownership of a server that is alone: it owns all topics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from frazil.core.cluster import Balance, BrokerInfo, DrainReport, MoveCounts, PlannedMove
from frazil.core.errors import ClusterOff
from frazil.core.names import TopicName


class SingleOwner:
    """See `Ownership`."""

    is_clustered = False

    def __init__(
        self, broker_id: str, addresses: Mapping[str, str], names: Callable[[], Collection[TopicName]]
    ) -> None:
        """`addresses` are those of the open doors; `names` returns all topics."""
        self.broker_id = broker_id
        self._addresses = addresses
        self._names = names
        self.counts = MoveCounts()

    def owner_of(self, topic: TopicName) -> BrokerInfo | None:  # noqa: ARG002 - it owns every topic
        return self._itself()

    def must_own(self, topic: TopicName) -> None:
        pass

    def topics(self) -> Collection[TopicName]:
        return self._names()

    def family(self, name: TopicName) -> Collection[TopicName]:
        base = name.partition_of()[0]
        return {one for one in self._names() if one.partition_of()[0] == base}

    def refresh(self, topic: TopicName) -> None:
        pass

    def elsewhere(self, name: TopicName) -> Mapping[TopicName, str | None]:  # noqa: ARG002 - it owns every topic
        return {}

    def problems(self) -> Mapping[TopicName, str]:
        return {}

    def brokers(self) -> list[BrokerInfo]:
        return [self._itself()]

    def leader(self) -> str | None:
        return self.broker_id

    def balance(self) -> Balance:
        return Balance((self._itself(),))

    async def move(self, topic: TopicName, to: str | None = None, *, accept_loss: bool = False) -> None:  # noqa: ARG002 - as in the interface
        raise ClusterOff

    async def drain(
        self,
        broker_id: str,  # noqa: ARG002 - as in the interface
        *,
        timeout_ms: int | None = None,  # noqa: ARG002
        parallel_max: int = 4,  # noqa: ARG002
    ) -> DrainReport:
        raise ClusterOff

    async def activate(self, broker_id: str) -> None:  # noqa: ARG002 - as in the interface
        raise ClusterOff

    async def rebalance(self, *, dry_run: bool = False, moves_max: int | None = None) -> list[PlannedMove]:  # noqa: ARG002 - as in the interface
        raise ClusterOff

    def _itself(self) -> BrokerInfo:
        count = len(self._names())
        return BrokerInfo(self.broker_id, dict(self._addresses), topics=count, load=float(count))
