"""What the routes work with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from frazil.broker.admin import BrokerAdmin
from frazil.broker.broker import Broker
from frazil.core.errors import BrokerOff, TryLater
from frazil.log.storage import Storage
from frazil.registry.registry import SchemaRegistry
from frazil.registry.topics import TopicSchemas
from frazil.serve.admin.jobs import VerifyJobs


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """The broker and the registry of schemas beside it, once they are open."""

    broker: Broker
    registry: SchemaRegistry
    topics: TopicSchemas


@dataclass(frozen=True, slots=True)
class AdminParts:
    storage: Storage
    jobs: VerifyJobs
    open_broker: Callable[[], BrokerParts | None] | None
    """None where the broker is off; it gives None as long as the broker is not open yet."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Of the doors that are open, by their names."""

    def broker_parts(self) -> BrokerParts:
        if self.open_broker is None:
            raise BrokerOff
        found = self.open_broker()
        if found is None:
            raise TryLater("the broker is not open yet; try again")
        return found

    @property
    def admin(self) -> BrokerAdmin:
        return BrokerAdmin(self.broker_parts().broker)
