"""Keep a broker's claim to its part of the metadata store while it runs."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from frazil.broker.broker import Broker
from frazil.broker.store.claim import Claim
from frazil.core.errors import FrazilError, MetadataInUse
from frazil.meta.session import Held

AGAIN_SECONDS = 1.0
COPY_BEATS = 12
"""About a minute: the age of positions in the copy."""

_log = logging.getLogger("frazil.broker")


class ClaimKeeper:
    """Created and used on one event loop: `await take()` before the broker starts, `await close()`
    when it is closed."""

    def __init__(self, claim: Claim, lost: Callable[[MetadataInUse], None]) -> None:
        """`lost` is called once, if another process has taken the claim."""
        self._claim = claim
        self._lost = lost
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="frazil-claim")
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def take(self) -> None:
        await self._run(self._claim.take)

    def keep(self, broker: Broker) -> None:
        """Keep the claim from now on. After a time without it, the broker's whole state is stored again."""
        self._task = asyncio.create_task(self._work(broker), name="claim")

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            await self._run(self._claim.release)
        except FrazilError as error:
            _log.warning("the claim to the metadata ends with its lease: %s", error)
        self._thread.shutdown()

    async def _work(self, broker: Broker) -> None:
        beat_seconds = self._claim.beat_ms / 1_000
        failing = owes = False
        for beat in itertools.count(1):
            await asyncio.sleep(AGAIN_SECONDS if failing else beat_seconds)
            try:
                if await self._run(self._claim.look) is Held.TAKEN_AGAIN:
                    _log.warning("the metadata store was restored, or did not hear of us for long: all is stored again")
                    owes = True
                if owes:
                    await broker.store_again()
                    owes = False
                if beat % COPY_BEATS == 0:
                    await broker.copy_all()
            except MetadataInUse as error:
                _log.critical("%s", error)
                self._lost(error)
                return
            except FrazilError as error:
                if not failing:
                    _log.error("the claim to the metadata could not be kept: %s; tried again", error)
                failing = True
            else:
                failing = False

    async def _run(self, work: Callable[[], object]) -> object:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
