"""Cursors on their way to the metadata store: those that moved, now and then, not one write for each acknowledgement.

A crash forgets at most what was acknowledged within the flush time; those messages are delivered once more.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from frazil.broker.cursor import Cursor
from frazil.broker.records import Records
from frazil.core.errors import FrazilError

RANGES_MAX = 1_000
"""Of what is acknowledged beyond a cursor; more would be delivered again after a crash, and no more is stored."""
AGAIN_SECONDS_MAX = 10.0

_log = logging.getLogger("frazil.broker")


class ProgressKeeper:
    def __init__(self, records: Records, flush_ms: int) -> None:
        self._records = records
        self._flush_seconds = flush_ms / 1_000
        self._moved: dict[str, Cursor] = {}
        self._flushing = asyncio.Lock()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._work(), name="progress")

    def moved(self, key: str, cursor: Cursor) -> None:
        self._moved[key] = cursor
        self._wake.set()

    def forget(self, key: str) -> None:
        """Of a subscription that is no more."""
        self._moved.pop(key, None)

    async def flush(self) -> None:
        """All that has moved is durable when it returns."""
        async with self._flushing:
            await self._flush()

    async def _flush(self) -> None:
        moved, self._moved = self._moved, {}
        if not moved:
            return
        values = {key: _stored(cursor) for key, cursor in moved.items()}
        try:
            await self._records.put_all(values)
        except BaseException:
            self._moved = {**moved, **self._moved}
            raise
        for key, cursor in moved.items():
            cursor.durable_end = values[key]["offset"]

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.flush()

    async def _work(self) -> None:
        delay = self._flush_seconds
        while True:
            await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(delay)
            try:
                await self.flush()
            except FrazilError as error:
                delay = min(AGAIN_SECONDS_MAX, 2 * max(delay, 0.1))
                _log.error("progress of subscriptions could not be stored: %s; tried again in %.1f s", error, delay)
                self._wake.set()
            else:
                delay = self._flush_seconds


def _stored(cursor: Cursor) -> dict[str, Any]:
    above = [[each.start, each.end] for _, each in zip(range(RANGES_MAX), cursor.above(), strict=False)]
    stored: dict[str, Any] = {"offset": cursor.end, "acked": above, "epoch": cursor.epoch}
    if cursor.place is not None and cursor.place[0] == cursor.end:
        stored |= cursor.place[1]._asdict()
    return stored


def restored(value: dict[str, Any]) -> Cursor:
    above = [(int(start), int(end)) for start, end in value.get("acked", ())]
    return Cursor(int(value["offset"]), above, int(value.get("epoch", 0)))
