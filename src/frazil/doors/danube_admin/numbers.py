"""The numbers of brokers, by which Danube's admin tools name them.

A server that is alone is broker 1. In a cluster a number is made from the broker's id; calls also take the id itself.
"""

from __future__ import annotations

from frazil.core.cluster import BrokerInfo
from frazil.core.errors import BrokerNotFound, InvalidInput
from frazil.doors.owning import Owning

ALONE = 1
"""The number of the only broker."""


def number_of(owning: Owning, broker: BrokerInfo) -> int:
    return broker.number if owning.is_clustered else ALONE


def number_of_id(owning: Owning, broker_id: str | None) -> int:
    """Return 0 for a broker that is not known."""
    found = next((one for one in owning.ownership.brokers() if one.broker_id == broker_id), None)
    return 0 if found is None else number_of(owning, found)


def broker_named(owning: Owning, text: str) -> BrokerInfo:
    """Find a broker by its number or its id."""
    if not text:
        raise InvalidInput("broker_id: must be given", field="broker_id")
    for one in owning.ownership.brokers():
        if text in (str(number_of(owning, one)), one.broker_id):
            return one
    raise BrokerNotFound(text[:80])
