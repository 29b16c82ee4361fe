"""Calls of the metadata store, which block, made in threads for the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from frazil.meta.store import Change, Watch

CHANGES_MAX = 1_000
WAIT_MS = 1_000

_Result = TypeVar("_Result")


class MetaCalls(Protocol):
    async def call(self, work: Callable[[], _Result]) -> _Result:
        """Make a blocking call."""
        ...

    async def changes(self, watch: Watch) -> list[Change]:
        """Wait for the next changes of a watch; sometimes there are none."""
        ...


class ThreadCalls:
    """Create and close it on the event loop."""

    def __init__(self, threads: int, name: str = "frazil-cluster") -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def call(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def changes(self, watch: Watch) -> list[Change]:
        return await self.call(lambda: _changes(watch))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _changes(watch: Watch) -> list[Change]:
    change = watch.next(WAIT_MS)
    found: list[Change] = []
    while change is not None:
        found.append(change)
        change = watch.next(0) if len(found) < CHANGES_MAX else None
    return found
