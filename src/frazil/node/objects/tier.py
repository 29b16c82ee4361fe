"""The object tier of a log that this process owns, with its figures."""

from __future__ import annotations

from functools import partial

from frazil.core.clock import Clock
from frazil.core.errors import FrazilError, MetadataUnavailable, ObjectStoreUnavailable
from frazil.core.stored_objects import StoredObject
from frazil.log.retention.dropped import dropped_ranges
from frazil.log.stats import LogSide, ObjectSide
from frazil.log.topic_log import TopicLog
from frazil.node.objects.figures import object_side
from frazil.node.topics.freshness import append_time_us
from frazil.objects.known import KnownLog
from frazil.objects.log_objects import LogObjects
from frazil.objects.store import ObjectStore
from frazil.objects.tier import ObjectTier
from frazil.objects.upload.log_upload import reason_of
from frazil.objects.upload.uploader import Uploader

REST_US = 5_000_000


class StoreRest:
    """Remembers for a moment that the store did not answer: not each log in a list waits for it. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._met: tuple[FrazilError, int] | None = None

    def load(self, known: KnownLog) -> LogObjects:
        """Load the objects of a log; repeats the error of the last attempt for a while."""
        met = self._met
        if met is not None and self._clock.monotonic_us() < met[1]:
            raise met[0]
        try:
            return known.load()
        except (ObjectStoreUnavailable, MetadataUnavailable) as error:
            self._met = (error, self._clock.monotonic_us() + REST_US)
            raise


class OwnObjectTier(ObjectTier):
    def __init__(self, store: ObjectStore, known: KnownLog, log: TopicLog, uploader: Uploader, rest: StoreRest) -> None:
        super().__init__(lambda: store, known, lambda: log.schema, log.context.metrics.read_from_objects)
        self._log_known = known
        self._rest = rest
        self._uploader = uploader

    def announced(self) -> tuple[StoredObject, ...]:
        """Return the objects that other processes may read. Raises the reason if they are not known."""
        known = self._log_known.now()
        return (self._rest.load(self._log_known) if known is None else known).all()

    def side(self, log: TopicLog, *, ask: bool) -> ObjectSide:
        """Without `ask`, only what is known, and no file is read. Manifests are asked, not the store."""
        known, problem = self._log_known.now(), self._uploader.upload_of(log).error
        error = None if problem is None else reason_of(problem)
        held: tuple[StoredObject, ...] = ()
        if known is not None:
            held = known.all()
        elif ask and self._log_known.manifests is not None:
            try:
                held = tuple(self._log_known.manifests.of(log.log_id))
            except FrazilError as unknown:
                error = unknown.message
        span = LogSide(log.first_offset, log.durable_end, dropped_ranges(log.removal.dropped))
        oldest = partial(append_time_us, log) if ask else None
        return object_side(held, span, log.context.clock, oldest, error)
