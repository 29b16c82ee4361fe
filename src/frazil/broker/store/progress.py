"""Write moved cursors to the metadata store periodically, not one write for each acknowledgement.

A crash loses at most the acknowledgements within the flush time; those messages are redelivered.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Any

from frazil.broker.delivery.progress import Progress
from frazil.broker.store.cluster import Cluster
from frazil.broker.store.records import Records, Stored
from frazil.broker.subscriptions.subscription import Subscription
from frazil.core.backoff import backoff
from frazil.core.errors import FrazilError
from frazil.core.names import TopicName
from frazil.core.offsets import OffsetRange, Place
from frazil.meta.broker_keys import topic_of_progress

RANGES_MAX = 1_000
"""Ranges stored above a cursor; messages in further ranges are redelivered after a crash."""
STEP_MAX = 1_000
"""Cursors per transaction: the loop must serve others."""
AGAIN_SECONDS_MAX = 10.0

_log = logging.getLogger("frazil.broker")


class ProgressKeeper:
    def __init__(self, records: Records, flush_ms: int, cluster: Cluster | None = None) -> None:
        """In a `cluster`, cursors of topics that another broker owns by now are not stored: that broker's are newer."""
        self._records = records
        self._cluster = cluster
        self._flush_seconds = flush_ms / 1_000
        self._moved: dict[str, Subscription] = {}
        self._to_store_again: dict[str, tuple[TopicName, Callable[[], Mapping[str, Stored]]]] = {}
        self._flushing = asyncio.Lock()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._work(), name="progress")

    def moved(self, key: str, subscription: Subscription) -> None:
        self._moved[key] = subscription
        self._wake.set()

    def forget(self, key: str) -> None:
        """Forget a deleted subscription or topic."""
        self._moved.pop(key, None)
        self._to_store_again.pop(key, None)

    def store_again(self, key: str, topic: TopicName, records: Callable[[], Mapping[str, Stored]]) -> None:
        """After a failed deletion, which may have removed stored state of a topic, store it again."""
        self._to_store_again[key] = topic, records
        self._wake.set()

    def held(self) -> asyncio.Lock:
        """Pause writes: state that is being deleted must not be written again."""
        return self._flushing

    async def flush(self) -> None:
        """All moved cursors are durable when it returns."""
        async with self._flushing:
            await self._flush()

    async def _flush(self) -> None:
        waiting, self._moved = self._moved, {}
        try:
            while self._to_store_again:
                key, (topic, records) = next(iter(self._to_store_again.items()))
                await self._records.put_all(records(), only=lambda _, of=topic: self._owns(of))  # type: ignore[misc]
                self._to_store_again.pop(key, None)
            while waiting:
                step = dict(itertools.islice(waiting.items(), STEP_MAX))
                await self._store({key: one for key, one in step.items() if not one.deleted})
                for key in step:
                    del waiting[key]
        finally:
            self._moved = {**waiting, **self._moved}

    def _is_ours(self, key: str) -> bool:
        return self._owns(topic_of_progress(key))

    def _owns(self, topic: TopicName) -> bool:
        return self._cluster is None or self._cluster.owns(topic)

    async def _store(self, moved: dict[str, Subscription]) -> None:
        taken = {key: one.progress() for key, one in moved.items()}
        values = {key: stored_form(taken[key], one.place) for key, one in moved.items()}
        await self._records.put_all(values, copied=False, only=self._is_ours)
        for key, one in moved.items():
            one.stored(taken[key])

    async def close(self) -> None:
        """Cursors that cannot be stored lead to redeliveries after a restart."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            await self.flush()
        except FrazilError as error:
            _log.error("progress of %d subscriptions could not be stored: %s", len(self._moved), error)

    async def _work(self) -> None:
        failures = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(self._delay_seconds(failures))
            try:
                await self.flush()
            except FrazilError as error:
                failures += 1
                delay = self._delay_seconds(failures)
                _log.error("progress of subscriptions could not be stored: %s; retry in %.1f s", error, delay)
                self._wake.set()
            else:
                failures = 0

    def _delay_seconds(self, failures: int) -> float:
        if not failures:
            return self._flush_seconds
        return backoff(failures, first=2 * max(self._flush_seconds, 0.1), limit=AGAIN_SECONDS_MAX)


def stored_form(progress: Progress, place: Place | None = None) -> dict[str, Any]:
    """Encode progress, with the table position of a row before the cursor if known."""
    stored: dict[str, Any] = {
        "offset": progress.cursor,
        "acked": [[one.start, one.end] for one in progress.done[:RANGES_MAX]],
        "incarnation": progress.incarnation,
        "attempts": {str(offset): count for offset, count in progress.attempts.items()},
    }
    return stored if place is None else stored | place._asdict()


def restored(value: dict[str, Any], new_incarnation: Callable[[], int]) -> Progress:
    """Decode progress; a record of an earlier version has no incarnation."""
    done = tuple(OffsetRange(int(start), int(end)) for start, end in value.get("acked", ()))
    attempts = {int(offset): int(count) for offset, count in value.get("attempts", {}).items()}
    return Progress(int(value.get("incarnation") or new_incarnation()), int(value["offset"]), done, attempts)


def restored_place(value: dict[str, Any]) -> Place | None:
    """Return None if unknown, or in a record of an earlier version, which has no sequence number."""
    if any(value.get(name) is None for name in Place._fields):
        return None
    return Place(int(value["snapshot_id"]), str(value["file"]), int(value["sequence_number"]))
