"""An epoch: the right of one process to store the next objects of a log, granted by the store itself.

    begin_epoch   take a log over: a fence gets the next name of the newest epoch, and so ends it
    Epoch         put objects, until another owner takes the log over: then `LogFenced`, for good

A name is created once: of two processes that both believe to be the owner, one is refused. No clock and no lease
decides.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field

from isal.isal_zlib import crc32

from frazil.core.clock import Clock
from frazil.core.errors import Fenced, LogFenced, MetadataUnavailable, ObjectDamaged, ObjectStoreUnavailable
from frazil.core.stored_objects import StoredObject
from frazil.objects.known import KnownLog
from frazil.objects.loading import LoadedObjects, load_objects, object_name
from frazil.objects.log_objects import LogObjects
from frazil.objects.names import ObjectName
from frazil.objects.packing import FENCE_BYTES_MAX, Fence, pack_fence, unpack_fence
from frazil.objects.store import ObjectExists, ObjectMissing

TRIES_MAX = 64
"""Each failed try means that the former owner has stored more, or another process has taken the log over."""

_log = logging.getLogger("frazil.objects")


@dataclass(frozen=True, slots=True)
class EpochClaim:
    """The owner that takes a log over. One value for each attempt: a repeated call finds its own fence."""

    owner: str
    address: str = ""
    token: str = field(default_factory=lambda: uuid.uuid4().hex)


def begin_epoch(
    known: KnownLog, topic: str, claim: EpochClaim, clock: Clock, *, first: int | None = None, ack: str = ""
) -> Epoch:
    """Take a log over, and return the epoch in which this process stores its objects: one for all its parts.

    An epoch that this owner has begun is returned again, unless another process has ended it.
    `first` is where the epoch begins, if above the end of the objects: the log was never uploaded and begins there, or
    it is accepted that no object has the rows in between. Raises `ObjectDamaged`, `ObjectStoreUnavailable` or
    `MetadataUnavailable`; after these a call with the same claim tries again.
    """
    with known.beginning:
        current = known.epoch
        if current is None or not current.serves(claim, first):
            current = known.epoch = _begun(known, topic, claim, clock, first, ack)
        return current


def _begun(known: KnownLog, topic: str, claim: EpochClaim, clock: Clock, first: int | None, ack: str) -> Epoch:
    found: LoadedObjects | None = None
    unrecorded: tuple[StoredObject, ...] = ()
    for _ in range(TRIES_MAX):
        before = () if found is None else found.objects
        found = load_objects(known.store, known.log_id, known.manifests, before)
        unrecorded += found.unrecorded
        if known.manifests is not None:
            known.manifests.remove(found.outdated)
        fence = found.owner
        if fence is None or fence.claim != claim.token:
            start = found.end if first is None else max(first, found.end)
            fence = Fence(found.epoch + 1, claim.owner, start, claim.token, claim.address, topic, ack)
            name = ObjectName(known.log_id, found.epoch, found.end)
            try:
                known.store.create(str(name), pack_fence(found.end, fence))
            except ObjectExists:
                continue  # the former owner has stored more, or another process takes the log over too
        objects = LogObjects(known.log_id, fence.epoch, found.objects)
        epoch = Epoch(known, objects, fence, clock, list(unrecorded))
        known.replace(objects, epoch)
        epoch.record()
        return epoch
    reason = f"the next name of {topic} was taken {TRIES_MAX} times: its former owner still stores objects"
    raise ObjectStoreUnavailable(known.log_id, reason)


class Epoch:
    """Thread-safe. Objects may be put at the same time and arrive in any order; they count in order of their offsets.

    A put that fails with `ObjectStoreUnavailable` may have taken effect: it must be repeated with the same bytes.
    """

    def __init__(
        self, known: KnownLog, objects: LogObjects, fence: Fence, clock: Clock, unrecorded: list[StoredObject]
    ) -> None:
        self._store = known.store
        self._manifests = known.manifests
        self._clock = clock
        self._guard, self._recording = threading.Lock(), threading.Lock()
        self._arrived: dict[int, StoredObject] = {}
        """Stored objects that begin behind one that is still on its way."""
        self._unrecorded = unrecorded
        self._is_recording_late = False
        self.log_id = known.log_id
        self.topic = fence.topic
        self.number = fence.epoch
        self.owner = fence.owner
        self.first = fence.first
        self.objects = objects
        self.end = fence.first
        """Rows below are in the store; objects say so of the time when they were made (`packing.pack_object`)."""
        self.fenced: LogFenced | ObjectDamaged | None = None
        """Why this epoch has ended. It stays ended."""
        self.refused_at: int | None = None
        """Where its objects end for good, if another process has taken the log over."""

    def put(
        self,
        first: int,
        end: int,
        content: bytes,
        first_time_us: int | None,
        last_time_us: int | None,
        *,
        record: bool = True,
    ) -> StoredObject:
        """Store an object with the rows from `first` up to `end`; it counts once `self.end` has passed it.

        `record=False` leaves its manifest to a later `record()`. Raises `LogFenced` if the log belongs to somebody
        else, now and at every later call.
        """
        assert self.end <= first < end, (self.end, first, end)
        self.check()
        name = ObjectName(self.log_id, self.number, first)
        try:
            etag = self._store.create(str(name), content)
        except ObjectExists:
            raise self._refused(name) from None
        times_us = first_time_us, last_time_us, self._clock.now_us()
        one = StoredObject(*name, end, len(content), etag, crc32(content), *times_us)
        self._settle(one)
        if record:
            self.record()
        return one

    def serves(self, claim: EpochClaim, first: int | None) -> bool:
        """Whether it is what a claim asks for: it goes on, belongs to that owner, and need not begin at `first`."""
        return self.fenced is None and self.owner == claim.owner and (first is None or first <= self.end)

    def look(self) -> None:
        """Raise `LogFenced` if another process has taken the log over: a put would find that out, but there is none."""
        self.check()
        name = ObjectName(self.log_id, self.number, self.end)
        try:
            if self._store.head(str(name)).size_bytes > FENCE_BYTES_MAX:
                return  # an object of this epoch that was just put
            fence = unpack_fence(self._store.get(str(name)))
        except ObjectMissing:
            return
        if fence is not None:
            raise self._ended(name, self._fenced_by(fence))

    def check(self) -> None:
        """Raise what has ended this epoch, if this process knows of it."""
        if self.fenced is not None:
            raise self.fenced

    def record(self) -> bool:
        """Store the manifests of objects that count; returns whether all have one. The others are stored later."""
        if self._manifests is None:
            return True
        with self._recording:
            with self._guard:
                waiting = list(self._unrecorded)
            try:
                self._manifests.put(waiting)
            except (MetadataUnavailable, Fenced) as error:
                if not self._is_recording_late:
                    _log.warning("manifests of %s are stored later, and its objects count: %s", self.topic, error)
                self._is_recording_late = True
                return False
            self._is_recording_late = False
            with self._guard:
                del self._unrecorded[: len(waiting)]
        return True

    def leave_unrecorded(self, gone: Iterable[StoredObject]) -> None:
        """Store no manifest of objects that are to be removed, if they have none yet."""
        names = {object_name(one) for one in gone}
        with self._recording, self._guard:
            self._unrecorded = [one for one in self._unrecorded if object_name(one) not in names]

    def _settle(self, one: StoredObject) -> None:
        """Count the object, and those behind it that arrived before it."""
        with self._guard:
            if self.fenced is not None:
                raise self.fenced  # it is behind the fence, and does not count
            self._arrived[one.first] = one
            while (following := self._arrived.pop(self.end, None)) is not None:
                self.objects.add(following)
                self._unrecorded.append(following)
                self.end = following.end

    def _refused(self, name: ObjectName) -> LogFenced | ObjectDamaged:
        """Find out why the name of the next object is taken."""
        try:
            fence = unpack_fence(self._store.get(str(name)))
        except ObjectMissing:
            raise ObjectStoreUnavailable(str(name), "the object that had this name is gone") from None
        if fence is None:
            return self._ended(name, ObjectDamaged(str(name), 0, "another object has this name, and it is no fence"))
        return self._ended(name, self._fenced_by(fence))

    def _fenced_by(self, fence: Fence) -> LogFenced:
        return LogFenced(self.topic, self.log_id, fence.owner, fence.address, fence.epoch)

    def _ended(self, name: ObjectName, ended: LogFenced | ObjectDamaged) -> LogFenced | ObjectDamaged:
        with self._guard:
            if self.fenced is None:
                self.fenced, self.refused_at = ended, name.first
        _log.error("%s", self.fenced)
        return self.fenced
