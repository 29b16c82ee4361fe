"""The doors of a Node beside HTTP, started and stopped with it on one event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from frazil.core.errors import InvalidSettings
from frazil.core.extras import needs
from frazil.doors.flight.door import FlightDoor
from frazil.node.node import Node

if TYPE_CHECKING:
    from frazil.doors.danube.door import DanubeDoor
    from frazil.doors.danube_admin.door import AdminDoor
    from frazil.doors.otlp.counts import OtlpCounts
    from frazil.doors.otlp.door import OtlpDoor
    from frazil.node.broker_parts import OnLost


class Doors:
    """Opens the Node's broker, then the doors over it."""

    def __init__(self, node: Node, flight: FlightDoor | None = None, otlp: OtlpCounts | None = None) -> None:
        """`otlp` are the counters of its doors; None leaves them out."""
        self._node = node
        self._otlp_counts = otlp
        self._otlp: OtlpDoor | None = None
        self._flight = flight
        self._broker_doors: list[DanubeDoor | AdminDoor] = []

    async def start(self, on_lost: OnLost = lambda _: None) -> None:
        """Their addresses are the Node's when it returns. What fails leaves doors open that `stop` closes.

        `on_lost` is called if another server takes the metadata over.
        """
        node = self._node
        await node.start(on_lost)  # first: it has what the Flight door checks messages by
        if node.has_broker:
            from frazil.doors.danube.door import DanubeDoor  # gRPC and Danube's messages, for those who want them
            from frazil.doors.danube_admin import AdminDoor

            for name, make in (("danube", DanubeDoor), ("admin", AdminDoor)):
                door = make(node)
                self._broker_doors.append(door)
                await door.start()
                node.addresses[name] = door.url
        if self._flight is not None:
            await self._flight.start()
            node.addresses |= {"flight": self._flight.address, "advertised": self._flight.advertised}
        if self._otlp_counts is not None:
            with needs(lambda hint: InvalidSettings(f"telemetry.enabled: {hint}")):
                from frazil.doors.otlp.door import OtlpDoor
            self._otlp = OtlpDoor(node, self._otlp_counts)
            node.addresses |= await self._otlp.start()

    async def stop(self) -> None:
        """Calls are answered and streams end before cursors are stored."""
        await self._node.leave()
        if self._flight is not None:
            await self._flight.stop()
        if self._otlp is not None:
            await self._otlp.stop()
        self._node.end_streams()
        await asyncio.gather(*(door.stop() for door in self._broker_doors))
        await self._node.stop()
