"""Retention of objects by age and size: oldest first, and only what another tier has, or no guard keeps.

    removable_objects   the pure decision
    ObjectRetention     asks the guards, records what no table holds, and removes
    _Removal            objects that no reader uses any more, and that the store may still have

Of a topic with a table an object goes once the table has its rows, which is asked of the catalog at that moment. Of one
without, once the files no longer have them: then its rows are gone, and are recorded as dropped. The last object of a
log stays, and so do fences.

What goes is noted before anything goes, on condition that this process still owns the log. So the next owner knows
what a former one may be removing, however late that one wakes up.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from frazil.core.clock import Clock
from frazil.core.errors import FrazilError, TryLater
from frazil.core.offsets import OffsetRange
from frazil.core.settings import RetentionSettings
from frazil.core.settings.objects import ObjectsSettings
from frazil.core.stored_objects import StoredObject
from frazil.log.retention.dropped import DroppedRange
from frazil.log.retention.guards import Guard, GuardFailed, ask
from frazil.log.topic_log import TopicLog
from frazil.meta.store import KeyAt
from frazil.objects.known import ObjectsOfLogs
from frazil.objects.loading import read_head
from frazil.objects.log_objects import LogObjects
from frazil.objects.names import log_folder, parse_name
from frazil.objects.packing import FENCE_BYTES_MAX, stored_before, unpack_fence
from frazil.objects.reading import name_of

INTERVAL_SECONDS = 30.0
STOP_SECONDS_MAX = 5.0

_log = logging.getLogger("frazil.objects")


def removable_objects(
    held: Sequence[StoredObject], age_ms: int | None, bytes_max: int | None, now_us: int, floor: int
) -> list[StoredObject]:
    """Return the oldest objects that exceed the age or the size and lie below `floor`; never the last one."""
    left = sum(one.size_bytes for one in held)
    going: list[StoredObject] = []
    for one in held[:-1]:
        too_many = bytes_max is not None and left > bytes_max
        newest_us = one.uploaded_us if one.last_time_us is None else one.last_time_us
        too_old = age_ms is not None and now_us - newest_us >= age_ms * 1_000
        if one.end > floor or not (too_many or too_old):
            break
        going.append(one)
        left -= one.size_bytes
    return going


class _Removal(NamedTuple):
    known: LogObjects
    """From which they were taken out."""
    left: deque[StoredObject]
    """Those that the store may still have, lowest offset first."""


class ObjectRetention:
    """`guards` are those of the storage, except the one that asks for objects."""

    def __init__(
        self,
        objects: ObjectsOfLogs,
        settings: ObjectsSettings,
        clock: Clock,
        guards: Callable[[], Iterable[Guard]],
        logs: Callable[[], Iterable[TopicLog]],
    ) -> None:
        self._objects = objects
        self._settings = settings
        self._clock = clock
        self._guards = guards
        self._logs = logs
        self.owned: Callable[[TopicLog], KeyAt | None] = lambda _: None
        """Returns on which condition this process owns a log, and raises `TryLater` if it does not; in a cluster."""
        self._cleaned: set[str] = set()
        self._going: dict[str, _Removal] = {}
        self._failing: dict[str, str] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._settings.age_ms is not None or self._settings.bytes is not None:
            self._thread = threading.Thread(target=self._work, name="frazil-objects-retention", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS_MAX)

    def enforce(self, log: TopicLog) -> int:
        """Remove what may go; returns the bytes. Raises what prevents it."""
        known = self._objects.of(log.log_id).load()
        removed = self._finish(log, known)
        held = known.all()
        place = self._settings.age_ms, self._settings.bytes, self._clock.now_us()
        if not removable_objects(held, *place, held[-1].end if held else 0):
            return removed
        epoch, owned = self._objects.of(log.log_id).epoch, self.owned(log)
        if epoch is not None:
            epoch.check()
        guards = list(self._guards())
        allowed = ask([guard for guard in guards if guard.concerns(log)], log)
        floor = allowed.floor if allowed.in_table else min(allowed.floor, log.first_offset)
        going = removable_objects(held, *place, min(floor, self._stored_below(log, held[-1])))
        changed = guards != list(self._guards()) or allowed.retention != log.retention
        if not going or changed:  # the guards are asked again, also one that was just added
            return removed
        self._note(log, going, None if allowed.in_table else self._dropped(going), owned)
        if epoch is not None:
            epoch.leave_unrecorded(going)
        if self._objects.manifests is not None:
            self._objects.manifests.remove(going)
        known.remove_below(going[-1].end)
        self._going[log.log_id] = _Removal(known, deque(going))
        removed += self._finish(log, known)
        if log.log_id not in self._cleaned:
            self._clean(log.log_id, held[len(going)])
            self._cleaned.add(log.log_id)
        return removed

    def _dropped(self, going: Sequence[StoredObject]) -> DroppedRange:
        policy = RetentionSettings(age_ms=self._settings.age_ms, bytes=self._settings.bytes)
        return DroppedRange(OffsetRange(going[0].first, going[-1].end), policy)

    def _note(
        self, log: TopicLog, going: Sequence[StoredObject], dropped: DroppedRange | None, owned: KeyAt | None
    ) -> None:
        """Store durably which rows are lost by what is removed now, then what is removed: it counts no more from then
        on, so a crash must not leave the folder without the rows."""
        if dropped is not None:
            log.record_dropped(dropped)
        manifests = self._objects.manifests
        if manifests is not None and not manifests.note_removed(log.log_id, going[-1].end, dropped, owned):
            raise TryLater(f"the record of {log.name} was changed meanwhile; its objects are looked at again")

    def _finish(self, log: TopicLog, known: LogObjects) -> int:
        """Finish the removal that an earlier call began, before any later object goes, so that no hole appears between
        objects. Objects that were loaded again since then include those that it has not removed yet."""
        removal = self._going.get(log.log_id)
        if removal is None or removal.known is not known:
            return 0
        removed = 0
        while removal.left:  # one by one: a crash leaves no hole between objects
            self._objects.store.delete([name_of(removal.left[0])])
            removed += removal.left.popleft().size_bytes
        del self._going[log.log_id]
        return removed

    def _stored_below(self, log: TopicLog, last: StoredObject) -> int:
        """Return up to where later objects or fences prove that rows were stored: a hole below is no crash's."""
        epoch = self._objects.of(log.log_id).epoch
        stored = stored_before(read_head(self._objects.store, last))
        return stored if epoch is None else max(stored, epoch.first)

    def _clean(self, log_id: str, first: StoredObject) -> None:
        """Remove what a crash, or a former owner, has left below the first object. Fences stay."""
        store = self._objects.store
        for info in store.walk(log_folder(log_id)):
            name = parse_name(info.name)
            if name is None or (name.epoch, name.first) >= (first.epoch, first.first):
                continue
            if info.size_bytes > FENCE_BYTES_MAX or unpack_fence(store.get(info.name)) is None:
                store.delete([info.name])

    def _work(self) -> None:
        while not self._stopping.wait(INTERVAL_SECONDS):
            for log in self._logs():
                if self._stopping.is_set():
                    return
                self._enforce_reported(log)

    def _enforce_reported(self, log: TopicLog) -> None:
        try:
            removed = self.enforce(log)
        except Exception as error:  # noqa: BLE001 - other topics are still processed; it is logged
            met = error.__cause__ or error if isinstance(error, GuardFailed) else error
            if self._failing.get(log.log_id) != str(met) and not self._stopping.is_set():
                trace = None if isinstance(met, FrazilError | OSError) else met
                _log.warning("objects of %s are kept past their retention: %s", log.name, met, exc_info=trace)
            self._failing[log.log_id] = str(met)
            return
        self._failing.pop(log.log_id, None)
        if removed:
            _log.info("removed %d bytes of objects of %s, past their retention", removed, log.name)
