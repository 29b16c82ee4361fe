"""Find out which objects a log has: from its manifests and what follows them, or from a listing alone.

Objects are walked by offset. A fence ends its epoch; the next one begins where the fence says. Several objects travel
at once, so a crash may leave some behind a hole: those do not count. But a hole below what was stored when a later
object was made (`stored_before`) is damage: an object is missing there, and is named.

Objects whose removal was noted do not count, whether they are still there or not: a former owner may be removing them.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from frazil.core.errors import ObjectDamaged
from frazil.core.stored_objects import StoredObject
from frazil.log.format.frames import HEADER_BYTES, MARK_BYTES, frame_claim
from frazil.objects.chain import chain_of
from frazil.objects.manifests import Manifests
from frazil.objects.names import ObjectName, epoch_folder, log_folder, parse_name
from frazil.objects.packing import FENCE_BYTES_MAX, Fence, end_of_object, stored_before, unpack_fence
from frazil.objects.reading import REQUESTS, name_of, read_bytes
from frazil.objects.store import ObjectInfo, ObjectMissing, ObjectStore

HEAD_BYTES_FIRST = 64 * 1024
"""The schema frame of most objects is within this; a longer one takes a second request."""
TRIES_MAX = 3

_log = logging.getLogger("frazil.objects")


@dataclass(frozen=True, slots=True)
class LoadedObjects:
    """What the store has of a log."""

    objects: tuple[StoredObject, ...]
    """Those that count, by offset."""
    epoch: int
    """The newest epoch; 0 if the log was never uploaded."""
    end: int
    """Where the newest epoch goes on: its next object, or the fence that ends it, has the name of this offset."""
    owner: Fence | None
    """The fence that began the newest epoch, if no object of that epoch is there yet."""
    unrecorded: tuple[StoredObject, ...]
    """Objects that count and have no manifest."""
    outdated: tuple[StoredObject, ...] = ()
    """Objects that have a manifest, and that retention had removed before the metadata store was restored."""


def load_objects(
    store: ObjectStore, log_id: str, manifests: Manifests | None, before: Sequence[StoredObject] = ()
) -> LoadedObjects:
    """Load a log's objects. Raises `ObjectDamaged` if one is missing between others, or cannot be read.

    With `before`, what was found before, only what follows is listed.
    """
    if before or manifests is None:
        return _loaded(store, log_id, before, 0, is_known=bool(before))
    recorded, below = _recorded(manifests, log_id)
    try:
        return _loaded(store, log_id, recorded, below)
    except ObjectDamaged:
        found = _behind_outdated(store, log_id, recorded, below)
        if found is None:
            raise
    _log.warning("the manifests of log %s are older than its objects, as from a backup: they are made again", log_id)
    return found


def _behind_outdated(
    store: ObjectStore, log_id: str, recorded: Sequence[StoredObject], below: int
) -> LoadedObjects | None:
    """Return what the store has if retention has removed all objects that have a manifest: the metadata store was
    restored. Returns None unless later objects prove that those rows were stored."""
    if not recorded:
        return None
    try:
        found = _loaded(store, log_id, (), below)
    except ObjectDamaged:
        return None  # what was found first is reported
    is_later = bool(found.objects) and found.objects[0].first >= recorded[-1].end
    return replace(found, outdated=tuple(recorded)) if is_later else None


def _loaded(
    store: ObjectStore, log_id: str, recorded: Sequence[StoredObject], below: int, *, is_known: bool = False
) -> LoadedObjects:
    """`is_known`: they were loaded before, and are not looked up again."""
    is_chain = is_known or _are_all(store, recorded, below)
    held = recorded if is_chain else []
    known = {} if is_chain else {object_name(one): one for one in recorded}
    for tries_left in reversed(range(TRIES_MAX)):
        listed = _list(store, log_id, held)
        try:
            if is_chain and not is_known:
                _check_newest(held, listed)
            behind = {name: info for name, info in listed.items() if not held or name > object_name(held[-1])}
            return _judged(store, behind, held, known, below)
        except ObjectDamaged:
            if not tries_left or _list(store, log_id, held).keys() == listed.keys():
                raise  # otherwise its owner has removed or added some meanwhile
    raise AssertionError("the last attempt returns or raises")


def read_head(store: ObjectStore, one: StoredObject) -> bytes:
    """Return at least the schema frame of an object, or of a fence."""
    head = read_bytes(store, one, 0, min(one.size_bytes, HEAD_BYTES_FIRST))
    length = HEADER_BYTES + frame_claim(memoryview(head), 0)[1] if len(head) >= HEADER_BYTES else 0
    return head if length <= len(head) else read_bytes(store, one, 0, min(one.size_bytes, length))


def end_of_epoch(store: ObjectStore, log_id: str, epoch: int) -> int:
    """Return where the objects of an epoch end: at the fence that ended it, which stays when they are removed.

    Returns 0 if the epoch was not ended.
    """
    for info in store.walk(epoch_folder(log_id, epoch)):
        name = parse_name(info.name)
        if name is not None and _is_fence(store, info):
            return name.first
    return 0


def object_name(one: StoredObject) -> ObjectName:
    return ObjectName(one.log_id, one.epoch, one.first)


def _recorded(manifests: Manifests, log_id: str) -> tuple[list[StoredObject], int]:
    """Return the objects that have a manifest and count, and the offset below which none does."""
    found = manifests.of(log_id)
    below = manifests.removed_below(log_id)
    return [one for one in found if one.end > below], below


def _are_all(store: ObjectStore, recorded: Sequence[StoredObject], below: int) -> bool:
    """Whether no object is missing before the last one that has a manifest.

    Manifests may be lost while others are stored, as when the metadata store is restored from a backup. Then there is
    a gap between them, or an object before the first one.
    """
    if any(one.end != following.first for one, following in itertools.pairwise(recorded)):
        return False
    if not recorded or not recorded[0].first:
        return True
    first = object_name(recorded[0])
    for info in store.walk(log_folder(first.log_id)):
        name = parse_name(info.name)
        if name is not None and name >= first:
            break
        if name is not None and below <= name.first < first.first and not _is_fence(store, info):
            return False
    return True


def _is_fence(store: ObjectStore, info: ObjectInfo) -> bool:
    try:
        return info.size_bytes <= FENCE_BYTES_MAX and unpack_fence(store.get(info.name)) is not None
    except ObjectMissing:
        return True  # it was removed meanwhile, so it is no object that is there


def _list(store: ObjectStore, log_id: str, held: Sequence[StoredObject]) -> dict[ObjectName, ObjectInfo]:
    """List the last object in `held`, and those after it."""
    infos = store.walk(log_folder(log_id), name_of(held[-2]) if len(held) > 1 else None)
    return {name: info for info in infos if (name := parse_name(info.name)) is not None}


def _check_newest(held: Sequence[StoredObject], listed: Mapping[ObjectName, ObjectInfo]) -> None:
    """Raise `ObjectDamaged` if the newest object that has a manifest is not in the store: it is another store, or an
    older copy of it. The log must not go on there, and no row is safe there."""
    for one in held[-1:]:
        _check_listed(one, listed.get(object_name(one)))


def check_stored(
    store: ObjectStore, wanted: Sequence[StoredObject], held: Callable[[], Sequence[StoredObject]]
) -> None:
    """Raise `ObjectDamaged` for the first of a log's objects that the store does not have in its size.

    They are listed, not read. `held` returns those that are still known afterwards: others were removed meanwhile.
    """
    if not wanted:
        return
    first = object_name(wanted[0])
    before = first._replace(first=first.first - 1) if first.first else None
    listed = {info.name: info for info in store.walk(log_folder(first.log_id), None if before is None else str(before))}
    still = {object_name(one) for one in held()}
    for one in wanted:
        if object_name(one) in still:
            _check_listed(one, listed.get(name_of(one)))


def _check_listed(one: StoredObject, info: ObjectInfo | None) -> None:
    if info is None:
        why = "the object is missing from its store, and it has a manifest; is it the right object store?"
        raise ObjectDamaged(name_of(one), 0, why)
    if info.size_bytes != one.size_bytes:
        why = f"the object was cut or replaced: it has {info.size_bytes} bytes, not {one.size_bytes}"
        raise ObjectDamaged(name_of(one), 0, why)


def _judged(
    store: ObjectStore,
    listed: Mapping[ObjectName, ObjectInfo],
    held: Sequence[StoredObject],
    known: Mapping[ObjectName, StoredObject],
    below: int,
) -> LoadedObjects:
    chain = chain_of(name for name, info in listed.items() if name.first >= below or info.size_bytes <= FENCE_BYTES_MAX)
    unknown = [name for name in chain if name not in known]
    found = dict(known)
    for one in REQUESTS.map(lambda name: _found(store, name, listed[name]), unknown):
        found[object_name(one)] = one
    chain = [name for name in chain if found[name].range is None or found[name].end > below]
    walk = _ChainWalk(store, held, below)
    for position, name in enumerate(chain):
        if walk.take(found[name]):
            continue
        behind = [found[other] for other in chain[position:]]
        if not walk.begins_with(behind):
            walk.check_hole(behind)
            break
    _check_recorded(walk, known, listed)
    unrecorded = tuple(one for one in walk.objects[len(held) :] if object_name(one) not in known)
    return LoadedObjects(tuple(walk.objects), walk.epoch, walk.end or 0, walk.owner, unrecorded)


def _check_recorded(
    walk: _ChainWalk, known: Mapping[ObjectName, StoredObject], listed: Mapping[ObjectName, ObjectInfo]
) -> None:
    """Raise `ObjectDamaged` if an object beyond the last one has a manifest: its rows were stored."""
    for name, one in known.items():
        if one.end > (walk.end or 0) and name not in listed:
            raise ObjectDamaged(str(name), 0, "the object is missing from its store, and it has a manifest")


def _found(store: ObjectStore, name: ObjectName, info: ObjectInfo) -> StoredObject:
    """Return an object that was found in the store, with its end from its last bytes."""
    if info.size_bytes < MARK_BYTES:
        raise ObjectDamaged(str(name), 0, f"the object was cut: it has {info.size_bytes} bytes")
    one = StoredObject(*name, name.first, info.size_bytes, info.etag, uploaded_us=info.modified_us)
    tail = read_bytes(store, one, info.size_bytes - MARK_BYTES, MARK_BYTES)
    end = end_of_object(str(name), tail, info.size_bytes)
    if end < name.first:
        raise ObjectDamaged(str(name), info.size_bytes - MARK_BYTES, f"it ends at offset {end}, before it begins")
    return StoredObject(*name, end, info.size_bytes, info.etag, uploaded_us=info.modified_us)


class _ChainWalk:
    """The objects that count so far."""

    def __init__(self, store: ObjectStore, held: Sequence[StoredObject], below: int) -> None:
        self._store = store
        self._below = below
        self.objects = list(held)
        self.epoch = held[-1].epoch if held else 0
        self.end = held[-1].end if held else None
        self.owner: Fence | None = None

    def take(self, one: StoredObject) -> bool:
        """Take the next object; returns False if there is a hole before it."""
        if one.epoch < self.epoch:
            return True  # behind the fence of its epoch
        if self.end is not None and one.first > self.end:
            return False
        if self.end is not None and one.first < self.end:
            raise ObjectDamaged(name_of(one), 0, f"it begins before offset {self.end}, where another one ends")
        if one.range is None:
            self._take_fence(one)
        else:
            self.objects.append(one)
            self.epoch, self.end, self.owner = one.epoch, one.end, None
        return True

    def _take_fence(self, one: StoredObject) -> None:
        fence = unpack_fence(read_head(self._store, one))
        if fence is None or fence.epoch <= one.epoch or fence.first < one.first:
            raise ObjectDamaged(name_of(one), 0, "it has no rows, and is no valid fence")
        self.epoch, self.end, self.owner = fence.epoch, fence.first, fence

    def begins_with(self, behind: Sequence[StoredObject]) -> bool:
        """Take the first object behind a hole if there are only fences before it: retention has removed the objects in
        between, and leaves fences. Returns False if they were never stored."""
        if self.objects or max(self._below, self._stored_before(behind)[0]) < behind[0].first:
            return False
        self.epoch, self.end = behind[0].epoch, behind[0].first
        return self.take(behind[0])

    def check_hole(self, behind: Sequence[StoredObject]) -> None:
        """Raise `ObjectDamaged` if the rows of a hole were in the store."""
        stored, name = self._stored_before(behind)
        assert self.end is not None
        if stored > self.end:
            missing = ObjectName(behind[0].log_id, self.epoch, self.end)
            why = f"the object is missing from its store: rows up to {stored} were stored, as {name} says"
            raise ObjectDamaged(str(missing), 0, why)

    def _stored_before(self, behind: Sequence[StoredObject]) -> tuple[int, str]:
        """Return up to where rows were in the store, by the last object, which knows most."""
        last = [one for one in behind if one.epoch >= self.epoch][-1]
        stored = last.first if last.range is None else stored_before(read_head(self._store, last))
        return stored, name_of(last)
