"""What a broker says of a topic for a query at any broker: its own logs, and who has those of the other partitions."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from frazil.core.cluster import flight_address
from frazil.core.errors import MetadataUnavailable, NotOwner, TopicNotFound, TopicUnavailable
from frazil.core.names import TopicName
from frazil.log.info import LogInfo, log_info
from frazil.log.storage import Storage
from frazil.node.ownership.ownership import Ownership


@dataclass(frozen=True, slots=True)
class LogElsewhere:
    topic: TopicName
    broker_id: str
    flight: str


@dataclass(frozen=True, slots=True)
class FamilyLogs:
    """The logs of a topic or of all its partitions: each is in one of the two."""

    here: tuple[LogInfo, ...]
    elsewhere: tuple[LogElsewhere, ...]


def family_logs(storage: Storage, ownership: Ownership, name: TopicName) -> FamilyLogs:
    """Return the logs of a topic by its present record. Blocks; not on the event loop.

    Raises `TopicUnavailable` if no broker serves one of them. While the metadata store is away, only a topic that is
    here counts: another broker may have created or taken others.
    """
    away: MetadataUnavailable | None = None
    try:
        ownership.refresh(name)
    except MetadataUnavailable as error:
        away = error
    here: list[LogInfo] = []
    elsewhere: list[LogElsewhere] = []
    for topic in sorted(ownership.family(name)):
        try:
            ownership.must_own(topic)
        except NotOwner as owned:
            elsewhere.append(_elsewhere(topic, owned))
        else:
            with contextlib.suppress(TopicNotFound):  # deleted since
                here.append(log_info(storage, str(topic)))
    if away is not None and (elsewhere or not here):
        raise away
    return FamilyLogs(tuple(here), tuple(elsewhere))


def _elsewhere(topic: TopicName, owned: NotOwner) -> LogElsewhere:
    broker_id, address = str(owned.fields["broker_id"]), flight_address(owned.fields["addresses"])
    if address is None:
        raise TopicUnavailable(str(topic), f"its broker {broker_id} has no Flight address yet")
    return LogElsewhere(topic, broker_id, address)
