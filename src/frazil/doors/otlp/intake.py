"""One export request, from whichever door: the rights of its sender, the count of its items, and the append."""

from __future__ import annotations

import asyncio

from frazil.core.errors import NotOwner, RequestTooLarge
from frazil.doors.otlp.counts import OtlpCounts
from frazil.doors.otlp.forwarding import OtlpForwarding
from frazil.doors.otlp.headers import Export
from frazil.doors.shared_bytes import BudgetLimits, SharedBytes
from frazil.node.node import Node
from frazil.telemetry.otlp_json import protobuf_of
from frazil.telemetry.requests import ITEM_SETTING, ItemLimits, RequestCheck
from frazil.telemetry.responses import Rejected
from frazil.telemetry.signals import Signal

SECTION = "telemetry.otlp"
REQUEST_SETTING = f"{SECTION}.request_bytes_max"
JSON_AT_ONCE_BYTES = 16 * 1024


class OtlpIntake:
    """Used on one event loop."""

    def __init__(self, node: Node, counts: OtlpCounts) -> None:
        settings = node.settings.telemetry.otlp
        self._telemetry = node.telemetry
        self._limits = ItemLimits(settings.items_max, settings.item_bytes_max)
        self._request_bytes_max = settings.request_bytes_max
        self.counts = counts
        self._json_turns = asyncio.Semaphore(1)
        self.budget = SharedBytes(
            BudgetLimits(
                f"{SECTION}.held_bytes_max", settings.held_bytes_max, f"{SECTION}.calls_max", settings.calls_max
            )
        )
        self.forwarding = OtlpForwarding(node.settings)
        counts.held_bytes = lambda: self.budget.used_bytes

    def check(self, asked: Export) -> None:
        """Raise if the sender may not send there, before its request is received."""
        self._telemetry(asked.who).place(asked.who, asked.tenant, asked.dataset)

    async def from_json(self, signal: Signal, content: bytes) -> bytes:
        """Return a request in JSON as Protobuf; raises `InvalidInput`. A large one takes long, and a thread.

        As Protobuf it may be larger: a digit of a list of numbers becomes eight bytes. So its size is checked again.
        """
        if len(content) <= JSON_AT_ONCE_BYTES:
            found = protobuf_of(signal, content)
        else:
            async with self._json_turns:
                found = await asyncio.to_thread(protobuf_of, signal, content)
        if len(found) > self._request_bytes_max:
            raise RequestTooLarge("the request has, as Protobuf,", "bytes", REQUEST_SETTING, self._request_bytes_max)
        self.budget.keep(len(found))
        return found

    async def store(self, asked: Export, request: bytes) -> Rejected:
        """Return once the request is durable, with what was left out of it; one without items is not stored.

        Raises the reason why it is not stored at all.
        """
        telemetry = self._telemetry(asked.who)
        place = telemetry.place(asked.who, asked.tenant, asked.dataset)
        check = RequestCheck(asked.signal, request, self._limits)
        items = await self._count(check)
        rejected = self._rejected(asked.signal, check)
        if items == 0:
            return rejected
        if check.is_cut:
            self.budget.keep(len(request) + check.kept_bytes_max)  # doors hold what they have received
            request = await asyncio.to_thread(check.kept)
        try:
            await telemetry.export(asked.who, place, asked.signal, request, items)
        except NotOwner as elsewhere:
            rejected = rejected.and_also(await self.forwarding.forward(asked, request, elsewhere))
            self.counts.forwarded += 1
        else:
            self.counts.stored(asked.door, asked.signal, items, len(request))
        return rejected

    async def _count(self, check: RequestCheck) -> int:
        items = 0
        for number, found in enumerate(check.pieces()):
            items += found
            if number:
                await asyncio.sleep(0)  # others go on between two pieces
        return items

    def _rejected(self, signal: Signal, check: RequestCheck) -> Rejected:
        if not check.is_cut:
            return Rejected()
        self.counts.rejected[signal] += check.rejected
        limit = self._limits.item_bytes_max
        return Rejected(
            check.rejected,
            f"a span, log record or metric has more bytes than {ITEM_SETTING} = {limit}; send smaller ones",
        )
