"""Errors of a cluster of brokers; `frazil.core.errors` draws the whole tree."""

from __future__ import annotations

from collections.abc import Mapping

from frazil.core.errors.base import FrazilError
from frazil.core.errors.disk import TryLater


class NotOwner(TryLater):
    """Another broker owns the topic. Nothing was written: send the call to one of its addresses."""

    code = "not_owner"

    def __init__(self, topic: str, broker_id: str, addresses: Mapping[str, str], retry_after_ms: int = 100) -> None:
        """`addresses` are those of the owner's doors, by the name of the door."""
        super().__init__(
            f"{topic} is owned by the broker {broker_id}; send the call there",
            topic=topic,
            broker_id=broker_id,
            addresses=dict(addresses),
            retry_after_ms=retry_after_ms,
        )


class TopicUnavailable(TryLater):
    """No broker serves the topic now; nothing was written."""

    code = "topic_unavailable"

    def __init__(self, topic: str, reason: str, retry_after_ms: int = 500) -> None:
        """`reason` says why, and what to do if it takes long."""
        super().__init__(
            f"{topic} is not served now: {reason}", topic=topic, reason=reason, retry_after_ms=retry_after_ms
        )


class PartitionsElsewhere(FrazilError):
    """A call on all partitions of a topic came to a broker that does not own them all; nothing was done."""

    code = "partitions_elsewhere"

    def __init__(self, topic: str, elsewhere: Mapping[str, str]) -> None:
        """`elsewhere` are the owners of the partitions that are not here, by partition."""
        first = min(elsewhere)
        super().__init__(
            f"{topic} has partitions at other brokers: call for each by its name, as {first} at {elsewhere[first]}",
            topic=topic,
            elsewhere=dict(elsewhere),
        )


class BrokerNotFound(FrazilError):
    code = "broker_not_found"

    def __init__(self, broker_id: str, reason: str = "see `frazil brokers list`") -> None:
        super().__init__(f"there is no broker {broker_id}; {reason}", broker_id=broker_id)


class LossNotAccepted(FrazilError):
    """A topic would lose acknowledged rows that are only on the disk of a broker that is gone."""

    code = "loss_not_accepted"

    def __init__(self, topic: str, broker_id: str) -> None:
        super().__init__(
            f"rows of {topic} that were not uploaded are only on the disk of the broker {broker_id}, which is gone: "
            f"start that broker again, or accept their loss with: frazil topics move {topic} --accept-loss",
            topic=topic,
            broker_id=broker_id,
        )


class ClusterOff(FrazilError):
    """This server is the only one: it owns all topics."""

    code = "cluster_off"

    def __init__(self) -> None:
        super().__init__("this server is not one of a cluster, and owns all of its topics: there is no other broker")
