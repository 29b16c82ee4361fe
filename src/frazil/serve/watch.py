"""Everything that a serving process has to show beside its log, put together from its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client.registry import Collector

from frazil.core.clock import Clock
from frazil.log.storage import Storage
from frazil.serve.flight import FlightDoor
from frazil.serve.metrics_broker import BrokerCollector
from frazil.serve.metrics_flight import FlightCollector
from frazil.serve.metrics_tables import TablesCollector
from frazil.serve.readiness import BehindTheirTables, KeptRows, MissedObjectives, MoverProblems
from frazil.topics.floor import ToldStatus
from frazil.topics.freshness import Freshness

if TYPE_CHECKING:
    from frazil.serve.broker_doors import BrokerDoors


class Watch:
    """Further metrics, further reasons not to be ready, and warnings that leave it ready."""

    def __init__(
        self,
        storage: Storage,
        flight: FlightDoor,
        broker: BrokerDoors | None,
        clock: Clock,
        *,
        has_mover: bool,
        missing: str | None = None,
    ) -> None:
        """`missing` is why a mover that the settings want could not be started."""
        told = ToldStatus(storage.settings)
        freshness = Freshness(storage, told, clock, always=has_mover)
        self._missed = MissedObjectives(freshness, told, clock)
        self._mover = MoverProblems(told, clock, has_mover=has_mover, missing=missing)
        self._behind = BehindTheirTables(storage, told)
        self._kept = KeptRows(storage)
        tables = TablesCollector(freshness, told, clock, self._behind.messages)
        self.collectors: list[Collector] = [tables, FlightCollector(flight.counts)]
        if broker is not None:
            self.collectors.append(BrokerCollector(lambda: broker.broker))

    def problems(self) -> list[dict[str, Any]]:
        behind = self._behind()
        known = {one["topic"] for one in behind}  # each topic once, whether the mover or retention has met it
        return behind + [one for one in self._kept.ahead() if one["topic"] not in known] + self._missed()

    def warnings(self) -> list[dict[str, Any]]:
        return self._mover() + self._kept()
