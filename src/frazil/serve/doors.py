"""The doors of a Node beside HTTP, started and stopped with it on one event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from frazil.doors.flight.door import FlightDoor
from frazil.node.node import Node

if TYPE_CHECKING:
    from frazil.doors.danube.door import DanubeDoor
    from frazil.doors.danube_admin.door import AdminDoor
    from frazil.node.broker_parts import OnLost


class Doors:
    """Opens the Node's broker, then the doors over it."""

    def __init__(self, node: Node, flight: FlightDoor | None = None) -> None:
        self._node = node
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

    async def stop(self) -> None:
        """Calls are answered and streams end before cursors are stored."""
        if self._flight is not None:
            await self._flight.stop()
        self._node.end_streams()
        await asyncio.gather(*(door.stop() for door in self._broker_doors))
        await self._node.stop()
