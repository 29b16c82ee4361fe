"""The parts of a Node that doors use by themselves."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from frazil.core.clock import Clock
from frazil.core.errors import BrokerOff, TryLater
from frazil.core.extras import needs
from frazil.core.names import TopicName
from frazil.core.principal import Principal
from frazil.core.settings import Settings
from frazil.log.storage import Storage
from frazil.node.access.gate import Gate
from frazil.node.jobs.verbs import Command
from frazil.node.movers.movers import Movers
from frazil.node.ownership.ownership import Ownership

if TYPE_CHECKING:  # imported on first use: the embedded interface does not need these
    from frazil.broker.broker import Broker
    from frazil.lake.maintenance.table_inspection import TableInspector
    from frazil.node.broker_parts import BrokerParts
    from frazil.node.health.readiness import NodeHealth
    from frazil.node.jobs.jobs import AdminJobs
    from frazil.node.telemetry.opening import TenantParts
    from frazil.node.telemetry.telemetry import Telemetry
    from frazil.node.threads import Threads
    from frazil.node.topics.caller_namespaces import CallerNamespaces
    from frazil.registry.registry import SchemaRegistry
    from frazil.registry.topics import TopicSchemas


class NodeParts:
    """The base of `Node`, which sets all of these."""

    storage: Storage
    settings: Settings
    clock: Clock
    has_broker: bool
    gate: Gate
    _command: Command | None
    _parts: BrokerParts | None
    _movers: Movers
    _ownership: Ownership
    _health: NodeHealth | None
    _jobs: AdminJobs | None
    _telemetry: Telemetry | None
    tenant_parts: TenantParts | None
    """What is known of tenants, for `telemetry`; None while telemetry is off, and before `start`."""

    def broker(self, who: Principal) -> Broker:
        """Return the broker, for doors of message protocols."""
        return self._broker_parts(who).broker

    def registry(self, who: Principal) -> SchemaRegistry:
        """Return the registry of subjects and their versions. All its calls block."""
        return self._broker_parts(who).registry

    def schemas(self, who: Principal) -> TopicSchemas:
        """Return the schema settings of topics. All calls block."""
        return self._broker_parts(who).topics

    def schema_threads(self, who: Principal) -> Threads:
        """Return threads for calls of `registry` and `schemas`: a hanging metadata store delays no topic."""
        return self._broker_parts(who).threads

    def namespaces(self, who: Principal) -> CallerNamespaces:
        """Return the namespaces. All calls block."""
        from frazil.node.topics.caller_namespaces import CallerNamespaces

        return CallerNamespaces(self._broker_parts(who).namespaces, self.gate, who)

    def tables(self, who: Principal) -> TableInspector:  # noqa: ARG002 - every caller may do everything
        """Return the tables of the catalog. All calls block."""
        with needs():
            from frazil.lake.maintenance.table_inspection import TableInspector
        return TableInspector(self.settings)

    def movers(self, who: Principal) -> Movers:  # noqa: ARG002 - every caller may do everything
        """Return the mover lease and the mover's status."""
        return self._movers

    def ownership(self, who: Principal) -> Ownership:  # noqa: ARG002 - every caller may do everything
        """Return which broker owns which topics."""
        return self._ownership

    def health(self, who: Principal) -> NodeHealth:
        """Return readiness and problems."""
        if self._health is None:
            from frazil.node.health.readiness import NodeHealth

            self._health = NodeHealth(self.storage, self.movers(who), self.clock, self._not_served)
        return self._health

    def _not_served(self) -> Mapping[TopicName, str]:
        return self._ownership.problems()

    def jobs(self, who: Principal) -> AdminJobs:  # noqa: ARG002 - every caller may do everything
        """Return long-running work in separate processes: proofs, table maintenance, log checks."""
        if self._jobs is None:
            from frazil.node.jobs.jobs import AdminJobs

            self._jobs = AdminJobs.of(self._command or self._own_command, self.clock)
        return self._jobs

    def _broker_parts(self, who: Principal) -> BrokerParts:  # noqa: ARG002 - every caller may do everything
        if not self.has_broker:
            raise BrokerOff
        if self._parts is None:
            raise TryLater("the broker is not open yet; try again")
        return self._parts

    def _own_command(self, *verb: str) -> list[str]:
        return [sys.executable, "-m", "frazil", *verb, "--data", str(self.settings.data)]
