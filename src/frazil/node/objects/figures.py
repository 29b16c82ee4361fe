"""The figures of a log's objects, for descriptions of its topic."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from frazil.core.clock import Clock
from frazil.core.errors import FrazilError
from frazil.core.settings import Settings
from frazil.core.stored_objects import StoredObject
from frazil.log.attachment import NoAttachment
from frazil.log.stats import LogSide, ObjectSide, TierFigures
from frazil.log.storage import Storage
from frazil.meta.opening import has_meta, open_meta
from frazil.objects.manifests import Manifests

if TYPE_CHECKING:  # importing it takes the library of the object store
    from frazil.node.objects.parts import ObjectParts


@dataclass(frozen=True, slots=True)
class TopicObjects:
    """What is known of an open topic's objects without asking for it."""

    topic: str
    objects: int
    bytes: int
    lag_rows: int


@dataclass(frozen=True, slots=True)
class ObjectStats:
    """The uploads since the start of the process, and the topics whose objects are known."""

    uploaded: int
    uploaded_bytes: int
    failures: int
    waiting_deletions: int
    topics: list[TopicObjects]


def parts_of(storage: Storage) -> ObjectParts | None:
    """Return the object tier of a storage; None if it is off."""
    attached = storage.attachment
    return None if isinstance(attached, NoAttachment) else cast("ObjectParts", attached)


def object_stats(storage: Storage) -> ObjectStats | None:
    parts = parts_of(storage)
    if parts is None:
        return None
    topics = []
    for topic in storage.opened_topics():
        log, known = topic.log, parts.objects.of(topic.log.log_id).now()
        if known is not None:
            lag = max(0, log.durable_end - max(known.end, log.first_offset))
            topics.append(TopicObjects(topic.name, known.count, known.size_bytes, lag))
    counts = parts.uploader.counts
    return ObjectStats(counts.objects, counts.bytes, counts.failures, parts.deleted.waiting, topics)


def object_side(
    held: Sequence[StoredObject],
    log: LogSide,
    clock: Clock,
    append_time_us: Callable[[int], int] | None,
    error: str | None = None,
) -> ObjectSide:
    """`log.end` is the end of its durable rows. `error` says why the figures may be old, or rows are not uploaded.

    `append_time_us` returns when a row of the log was appended; None leaves the age of the lag unknown.
    """
    end = held[-1].end if held else 0
    oldest = max(end, log.first)
    lag = max(0, log.end - oldest)
    lag_ms = None if lag else 0
    if lag and append_time_us is not None:
        with contextlib.suppress(FrazilError, OSError):  # it was just removed
            lag_ms = max(0, clock.now_us() - append_time_us(oldest)) // 1_000
    rows, size = sum(one.end - one.first for one in held), sum(one.size_bytes for one in held)
    first = held[0].first if held else None
    return ObjectSide(TierFigures(first, end, rows, size, lag, lag_ms, clock.now_us(), error), tuple(held))


def side_from_manifests(
    settings: Settings, log_id: str, log: LogSide, clock: Clock, append_time_us: Callable[[int], int]
) -> ObjectSide | None:
    """Return the figures of a log that no process serves, from its manifests; None if objects are off."""
    if not settings.objects.enabled:
        return None
    held, error = [], None
    try:
        if has_meta(settings):
            with contextlib.closing(open_meta(settings)) as meta:
                held = Manifests(meta).of(log_id)
    except FrazilError as problem:
        error = problem.message
    return object_side(held, log, clock, append_time_us, error)
