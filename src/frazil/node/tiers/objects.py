"""The objects of logs for those who read them without owning them: other processes, and tasks anywhere.

    open_object_logs    what a process knows of the objects of all logs, with their manifests where it can reach them
    TaskObjects         objects of one log, with all that is needed to read them; it travels to tasks

The library of the object store is imported on first use: most processes never need it.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from frazil.core.extras import needs
from frazil.core.offsets import OffsetRange
from frazil.core.settings import Settings
from frazil.core.stored_objects import StoredObject
from frazil.log.info import covering
from frazil.meta.opening import has_meta, open_meta

if TYPE_CHECKING:
    from frazil.objects.known import ObjectsOfLogs
    from frazil.objects.store import ObjectStore


@contextlib.contextmanager
def open_object_logs(settings: Settings) -> Iterator[ObjectsOfLogs | None]:
    """For a process that is not the owner. None if the object tier is off. Nothing is requested yet."""
    if not settings.objects.enabled:
        yield None
        return
    with needs():
        from frazil.objects.known import ObjectsOfLogs
        from frazil.objects.manifests import Manifests
        from frazil.objects.opening import open_objects
    with contextlib.ExitStack() as opened:
        meta = opened.enter_context(contextlib.closing(open_meta(settings))) if has_meta(settings) else None
        yield ObjectsOfLogs(open_objects(settings), None if meta is None else Manifests(meta))


def object_store_of(settings: Settings) -> ObjectStore:
    """Open the store of the settings, once in each process: its connections are shared."""
    return _opened(pickle.dumps(store_settings(settings)))


def store_settings(settings: Settings) -> Settings:
    """Return only what opens the object tier's store. It contains that store's credentials."""
    store = settings.objects.store or settings.object_store
    return Settings(data=settings.data, objects=settings.objects.model_copy(update={"store": store}))


@functools.lru_cache(maxsize=4)
def _opened(settings: bytes) -> ObjectStore:
    with needs():
        from frazil.objects.opening import open_objects
    return open_objects(pickle.loads(settings))  # noqa: S301 - made by `object_store_of`


@dataclass(frozen=True, slots=True)
class TaskObjects:
    """Objects of one log, in offset order, and the store that has them. It contains secrets: send it to tasks, never to
    a log."""

    found: tuple[StoredObject, ...]
    settings: Settings = field(repr=False)

    def first_part(self, wanted: OffsetRange) -> OffsetRange | None:
        """Return the part of a range that objects hold, from its beginning on; None if they don't hold that."""
        held = covering(self.found, wanted)
        return OffsetRange(wanted.start, min(wanted.end, held[-1].end)) if held else None

    def read(self, wanted: OffsetRange, stored: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Read exactly a range that the objects hold, with `_offset`. Raises `ObjectDamaged` with an object's name."""
        with needs():
            from frazil.objects.ranges import read_object_range
        store = object_store_of(self.settings)
        return read_object_range(store, covering(self.found, wanted), wanted, stored)


def task_objects(settings: Settings, found: tuple[StoredObject, ...], wanted: OffsetRange) -> TaskObjects | None:
    """Return the objects with rows of a range; None if there are none, or the object tier is off."""
    held = tuple(one for one in found if one.first < wanted.end and one.end > wanted.start)
    return TaskObjects(held, store_settings(settings)) if held and settings.objects.enabled else None
