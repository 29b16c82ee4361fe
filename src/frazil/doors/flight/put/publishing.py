"""Streams of batches from clients into the log. The descriptor selects one of two protocols.

a path        a stock Flight client: plain record batches into a topic, see `frazil.doors.flight.put.plain`, or into a
              table of a tenant, see `frazil.doors.flight.put.table`
a command     Frazil's own client: numbered batches that can be sent again, see `frazil.doors.flight.put.numbered`
"""

from __future__ import annotations

import grpc

from frazil.core.access import Action
from frazil.core.errors import InvalidInput
from frazil.core.settings import FlightSettings
from frazil.doors.calls import Context
from frazil.doors.flight.calls import Calls, first_of, plain_errors
from frazil.doors.flight.put.intake import Intake
from frazil.doors.flight.put.numbered import put_numbered
from frazil.doors.flight.put.plain import put_plain
from frazil.doors.flight.put.table import put_table
from frazil.doors.flight.targets import Targets
from frazil.node.node import Node


class Publishing:
    def __init__(self, node: Node, settings: FlightSettings, calls: Calls, targets: Targets) -> None:
        self._targets = targets
        self._intake = Intake(node, settings, calls)

    async def put(self, context: Context) -> None:
        first = await first_of(context)
        if first is grpc.aio.EOF:
            return
        if first.path and first.command:
            raise InvalidInput("the descriptor has a path and a command: give one of them", field="descriptor")
        if first.path:
            with plain_errors(), self._intake.calls.stream():
                named = self._targets.of_path(first.path, Action.PRODUCE)
                if named.table is None:
                    await put_plain(self._intake, context, first, str(named.topic))
                else:
                    await put_table(self._intake, context, first, named.table)
        else:
            with self._intake.calls.stream():
                await put_numbered(self._intake, context, first)
