"""Keeps the view of the cluster current: a listing of each prefix, then its changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from frazil.core.errors import Closed, FrazilError
from frazil.meta.cluster_keys import CLUSTER
from frazil.meta.store import MetaStore, Watch
from frazil.meta.topic_records import TOPIC_RECORDS
from frazil.node.ownership.calls import MetaCalls
from frazil.node.ownership.view import Changes, ClusterView

PREFIXES = (CLUSTER, TOPIC_RECORDS)
AGAIN_SECONDS = 0.5

_log = logging.getLogger("frazil.cluster")


class Following:
    """Created and used on one event loop: `await load()`, then `start()`; `await close()` at the end."""

    def __init__(
        self, meta: MetaStore, view: ClusterView, calls: MetaCalls, changed: Callable[[Changes], None]
    ) -> None:
        """`changed` is called on the event loop after each batch of changes is in the view."""
        self._meta = meta
        self._view = view
        self._calls = calls
        self._changed = changed
        self._steps_back = dict.fromkeys(PREFIXES, meta.steps_back)
        self._revisions: dict[str, int] = {}
        self._watches: dict[str, Watch] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def load(self) -> None:
        """List everything: at the start, or again if the store was restored, or this broker may have missed much."""
        for prefix in PREFIXES:
            await self._load(prefix)

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._follow(prefix), name=f"follow {prefix}") for prefix in PREFIXES]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for watch in list(self._watches.values()):  # ends the calls that wait for it
            await self._calls.call(watch.close)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _load(self, prefix: str) -> None:
        listing = await self._calls.call(lambda: self._meta.snapshot(prefix))
        before, self._steps_back[prefix] = self._steps_back[prefix], self._meta.steps_back
        is_restored = before != self._steps_back[prefix]
        self._revisions[prefix] = listing.revision
        self._changed(self._view.replace(prefix, listing, is_restored=is_restored))

    async def _follow(self, prefix: str) -> None:
        """Follow the changes; what was known last applies while they are not seen."""
        is_told = False
        while True:
            try:
                await self._follow_from(prefix, self._revisions[prefix])
            except Closed:
                return
            except FrazilError as error:  # compacted, restored from a backup, or unavailable
                if not is_told:
                    _log.warning("changes below %s are not seen: %s; reading all again", prefix, error)
                is_told = True
            except Exception:  # noqa: BLE001 - logged; the next listing has everything
                _log.exception("a change below %s could not be followed; reading all again", prefix)
            await asyncio.sleep(AGAIN_SECONDS)
            try:
                await self._load(prefix)
            except Closed:
                return
            except FrazilError:
                continue
            except Exception:  # noqa: BLE001 - logged; an end of this task would leave the broker blind
                _log.exception("the records below %s could not be applied; reading all again", prefix)
                continue
            is_told = False

    async def _follow_from(self, prefix: str, revision: int) -> None:
        watch = await self._calls.call(lambda: self._meta.watch(prefix, revision))
        self._watches[prefix] = watch
        try:
            while True:
                found = await self._calls.changes(watch)
                if found:
                    applied = [(one.key, one.value, one.revision) for one in found]
                    self._changed(self._view.apply(applied, prefix))
        finally:
            del self._watches[prefix]
            await asyncio.shield(self._calls.call(watch.close))
