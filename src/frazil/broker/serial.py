"""Serialize changes of the broker's state, with a limit on the wait for the lock; and finish what was begun."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

from frazil.core.errors import TryLater

TURN_S_MAX = 10.0

Done = TypeVar("Done")


class SerialLock:
    """A lock with a timeout. A caller that does not get it in time gets `TryLater`: its holder may wait for a
    hanging store, and queued callers would add up their waits."""

    def __init__(self, turn_s_max: float = TURN_S_MAX) -> None:
        self._lock = asyncio.Lock()
        self._turn_s_max = turn_s_max

    async def __aenter__(self) -> None:
        try:
            async with asyncio.timeout(self._turn_s_max):
                await self._lock.acquire()
        except TimeoutError:
            raise TryLater("other changes wait for the disk or the metadata store; try again") from None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


async def to_its_end(work: Coroutine[Any, Any, Done]) -> Done:
    """Do the work completely, even if its caller is cancelled: nothing stops the threads that it waits for.

    A caller that is cancelled waits too, so that it keeps its locks until all is done.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    finally:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # it counts as seen
