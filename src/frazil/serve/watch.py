"""Everything that a serving process has to show beside its log, put together from its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.registry import Collector

from frazil.core.clock import Clock
from frazil.log.storage import Storage
from frazil.serve.flight import FlightDoor
from frazil.serve.metrics_broker import BrokerCollector
from frazil.serve.metrics_flight import FlightCollector
from frazil.serve.metrics_tables import TablesCollector
from frazil.serve.readiness import MissedObjectives
from frazil.topics.floor import ToldStatus
from frazil.topics.freshness import Freshness

if TYPE_CHECKING:
    from frazil.serve.broker_doors import BrokerDoors


class Watch:
    """Further metrics, and further reasons not to be ready."""

    def __init__(
        self, storage: Storage, flight: FlightDoor, broker: BrokerDoors | None, clock: Clock, *, has_mover: bool
    ) -> None:
        told = ToldStatus(storage.settings)
        freshness = Freshness(storage, told, clock, always=has_mover)
        self.problems = MissedObjectives(freshness, told, clock)
        self.collectors: list[Collector] = [TablesCollector(freshness, told, clock), FlightCollector(flight.counts)]
        if broker is not None:
            self.collectors.append(BrokerCollector(lambda: broker.broker))
