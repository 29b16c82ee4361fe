"""What the routes work with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from frazil.broker.admin import BrokerAdmin
from frazil.broker.broker import Broker
from frazil.broker.namespaces import Namespaces
from frazil.core.clock import Clock
from frazil.core.errors import BrokerOff, TryLater
from frazil.log.storage import Storage
from frazil.registry.registry import SchemaRegistry
from frazil.registry.topics import TopicSchemas
from frazil.serve.admin.jobs import Jobs
from frazil.serve.verbs import Command


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """The broker and the registry of schemas beside it, once they are open."""

    broker: Broker
    registry: SchemaRegistry
    topics: TopicSchemas
    namespaces: Namespaces


@dataclass(frozen=True, slots=True)
class AdminJobs:
    command: Command
    verify: Jobs
    maintenance: Jobs
    checks: Jobs

    @classmethod
    def of(cls, command: Command, clock: Clock) -> AdminJobs:
        """`--while-stdin` has a verb do the work itself, and end with us."""

        def job(*verb: str) -> list[str]:
            return command(*verb, "--while-stdin", "--progress-json", "--json")

        return cls(
            job,
            Jobs(job("verify"), clock),
            Jobs([], clock, "tables", "maintenance"),
            Jobs(job("log", "check"), clock, "bytes", "check"),
        )


@dataclass(frozen=True, slots=True)
class AdminParts:
    storage: Storage
    jobs: AdminJobs
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
