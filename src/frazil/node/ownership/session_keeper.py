"""Keeps the session of this broker, and what goes with it: the addresses of its doors, and its loads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping

from frazil.core.clock import Clock
from frazil.core.errors import FrazilError, LeaseExpired, MetadataInUse, TryLater
from frazil.core.names import TopicName
from frazil.meta import cluster_keys as keys
from frazil.meta.session import TAKE_TRIES_MAX, Held, LeasedSession
from frazil.meta.store import ABSENT, Lease, MetaStore
from frazil.node.ownership.calls import MetaCalls
from frazil.node.ownership.moves.load import TrafficLoads, differs

AGAIN_SECONDS = 0.5
LOAD_US = 10_000_000
"""How often the traffic is measured."""

_log = logging.getLogger("frazil.cluster")


class SessionKeeper:
    """Created and used on one event loop: `await take()`, then `start()`; `await close()` at the end.

    Calls of the session have a thread of their own: a store that hangs in another call does not end the lease.
    """

    def __init__(
        self,
        broker_id: str,
        session: LeasedSession,
        meta: MetaStore,
        addresses: Mapping[str, str],
        calls: MetaCalls,
        session_calls: MetaCalls,
        clock: Clock,
    ) -> None:
        """`addresses` is read at every beat: doors are opened later, and may get other ports."""
        self._broker_id = broker_id
        self._session = session
        self._meta = meta
        self._addresses = addresses
        self._calls = calls
        self._session_calls = session_calls
        self._clock = clock
        self._held_since_us: int | None = None
        self._loads = TrafficLoads()
        self._measured_us = clock.monotonic_us()
        self._announced: dict[str, tuple[bytes, Lease | None]] = {}
        self._told_loads: keys.LoadsRecord | None = None
        self._is_stopping = False
        self._looks = asyncio.Event()
        self._fenced: tuple[MetaStore, ...] = ()
        self._learning: asyncio.Task[None] | None = None
        """Lists what has changed while the session was lost."""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def session_id(self) -> str:
        return self._session.id

    @property
    def lease(self) -> Lease | None:
        return self._session.lease

    @property
    def is_lost(self) -> bool:
        """Whether the session may be lost: the store did not answer the last call."""
        return self._held_since_us is None

    @property
    def held_us(self) -> int:
        """How long the session has been held, and the store has answered, without a gap; 0 if it may be lost."""
        return 0 if self._held_since_us is None else self._clock.monotonic_us() - self._held_since_us

    async def take(self, *fenced: MetaStore) -> None:
        """Take the session, and fence stores by it. Raises `MetadataInUse` if another process has this id."""
        await self._session_calls.call(self._session.take)
        self._session.fence(*fenced)
        self._fenced = fenced
        self._held_since_us = self._clock.monotonic_us()

    def start(
        self,
        traffic: Callable[[], Mapping[TopicName, int]],
        learn: Callable[[], Awaitable[None]],
        lost: Callable[[MetadataInUse], None],
    ) -> None:
        """`learn` is called after a time without the session, and returns when this broker knows what it has lost:
        until then the fenced stores change nothing. `lost` is called once, if another process took the session."""
        self._tasks = [
            asyncio.create_task(self._keep(learn, lost), name="session of this broker"),
            asyncio.create_task(self._tell(traffic), name="addresses and loads of this broker"),
        ]

    def look_now(self) -> None:
        """Do not wait for the next beat: the session seems to be lost."""
        self._looks.set()

    async def stopping(self) -> None:
        """Announce that this broker is about to end: it gets no more topics."""
        self._is_stopping = True
        try:
            await self._announce()
        except FrazilError as error:
            _log.warning(
                "the others do not know yet that this broker ends: %s; announced again with the next beat", error
            )

    async def close(self) -> None:
        tasks = [*self._tasks, *([] if self._learning is None else [self._learning])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await self._session_calls.call(self._session.release)
        except FrazilError as error:
            _log.warning("the session of this broker ends with its lease: %s", error)

    async def _keep(self, learn: Callable[[], Awaitable[None]], lost: Callable[[MetadataInUse], None]) -> None:
        while True:
            try:
                held = await self._session_calls.call(self._session.look)
            except MetadataInUse as error:
                _log.critical("%s", error)
                lost(error)
                return
            except FrazilError as error:
                if self._held_since_us is not None:
                    _log.error("the session of this broker could not be kept: %s; tried again", error)
                self._held_since_us = None
                await asyncio.sleep(min(AGAIN_SECONDS, self._beat_s))
                continue
            if held is Held.TAKEN_AGAIN or self._held_since_us is None:
                self._held_since_us = self._clock.monotonic_us()
            if held is Held.TAKEN_AGAIN:
                _log.warning("the metadata store was restored, or did not hear of this broker for long")
                self._learn(learn)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._beat_s):
                    await self._looks.wait()
            self._looks.clear()

    def _learn(self, learn: Callable[[], Awaitable[None]]) -> None:
        """Fence the stores by the session as it is now, once its broker knows what others did meanwhile."""
        if self._learning is not None:
            self._learning.cancel()
        self._learning = asyncio.create_task(self._fence_anew(learn, self._session.value), name="what was lost")

    async def _fence_anew(self, learn: Callable[[], Awaitable[None]], value: bytes) -> None:
        while True:
            try:
                await learn()
            except Exception as error:  # noqa: BLE001 - logged, and tried again: the stores stay fenced
                _log.warning("it is not known yet what has changed meanwhile: %s; tried again", error)
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                self._session.fence(*self._fenced, value=value)
                return

    async def _tell(self, traffic: Callable[[], Mapping[TopicName, int]]) -> None:
        """Announce addresses and loads. Apart from the beats: these calls may take longer than the lease."""
        failing = False
        while True:
            try:
                await self._announce()
                await self._tell_loads(traffic)
            except Exception as error:  # noqa: BLE001 - logged, and tried again with the next beat
                if not failing:
                    _log.warning("the others do not know the addresses or loads of this broker yet: %s", error)
                failing = True
            else:
                failing = False
            await asyncio.sleep(self._beat_s)

    @property
    def _beat_s(self) -> float:
        return self._session.beat_ms / 1_000

    async def _announce(self) -> None:
        if self._addresses or self._is_stopping:
            record = keys.DoorsRecord(dict(self._addresses), self._is_stopping)
            await self._put(keys.DOORS + self._broker_id, record.encode())

    async def _tell_loads(self, traffic: Callable[[], Mapping[TopicName, int]]) -> None:
        seconds = (self._clock.monotonic_us() - self._measured_us) / 1e6
        if seconds * 1e6 >= LOAD_US:
            self._measured_us = self._clock.monotonic_us()
            self._loads.add(traffic(), seconds)
        now = self._loads.record()
        if differs(self._told_loads, now):
            self._told_loads = now
        await self._put(keys.LOADS + self._broker_id, (self._told_loads or now).encode())

    async def _put(self, key: str, value: bytes) -> None:
        """Put a key that ends with the session, unless it is there."""
        lease = self._session.lease
        if lease is None or self._announced.get(key) == (value, lease):
            return
        for _ in range(TAKE_TRIES_MAX):
            entry = await self._calls.call(lambda: self._meta.get(key))
            revision = ABSENT if entry is None else entry.revision
            try:
                made = await self._calls.call(lambda at=revision: self._meta.put_if(key, value, at, lease))  # type: ignore[misc]
            except LeaseExpired:
                return  # the session is taken again with the next beat
            if made is not None:
                self._announced[key] = (value, lease)
                return
        raise TryLater(f"{key} is changed by others all the time; try again")
