"""What an owner uploads of its logs, when a test wants it: epochs of the product, cut as the product cuts."""

from __future__ import annotations

from dataclasses import replace

import frazil
from frazil.core.clock import Clock
from frazil.core.settings import Settings
from frazil.log.read.history import ColderTiers
from frazil.log.retention.guards import Guard
from frazil.log.stats import LogSide, ObjectSide
from frazil.log.storage import open_storage
from frazil.log.topic_log import TopicLog
from frazil.node.objects.figures import object_side
from frazil.node.opening import Histories
from frazil.node.tiers.objects import object_store_of
from frazil.objects.epoch import Epoch, EpochClaim, begin_epoch
from frazil.objects.known import KnownLog, ObjectsOfLogs
from frazil.objects.manifests import Manifests
from frazil.objects.reading import name_of
from frazil.objects.tier import ObjectTier
from frazil.objects.upload.cutting import SegmentCutter
from frazil.testing import FakeClock


def with_objects(colder: ColderTiers, log: TopicLog, known: KnownLog) -> ColderTiers:
    """The tiers of a log with its objects, between its files and its table."""
    tier = ObjectTier(lambda: known.store, known, lambda: log.schema)
    return replace(colder, between=(tier,), objects=lambda: known.load().all(), figures=_Figures(known))


class _Figures:
    def __init__(self, known: KnownLog) -> None:
        self._known = known

    def side(self, log: TopicLog, *, ask: bool) -> ObjectSide:
        known = self._known.load() if ask else self._known.now()
        span = LogSide(log.first_offset, log.durable_end, ())
        return object_side(() if known is None else known.all(), span, log.context.clock, lambda _: 0)


class OwnerUploads:
    """The objects of one folder. Each new object of this class begins new epochs, as a new process does."""

    def __init__(self, settings: Settings, manifests: Manifests | None = None) -> None:
        self.known = ObjectsOfLogs(object_store_of(settings), manifests)
        self._settings = settings
        self._epochs: dict[str, Epoch] = {}
        self._claim = EpochClaim("a test")

    def open(self, *guards: Guard, clock: Clock | None = None) -> frazil.Storage:
        """Open the folder so that its logs have their objects and tables."""
        histories = Histories(self._settings)

        def colder_of(log: TopicLog) -> ColderTiers:
            return with_objects(histories(log), log, self.of(log))

        return open_storage(self._settings, clock=clock, colder_of=colder_of, guards_of=lambda: list(guards))

    def of(self, log: TopicLog) -> KnownLog:
        return self.known.of(log.log_id)

    def end(self, log: TopicLog) -> int:
        return self.of(log).load().end

    def upload(self, log: TopicLog, bytes_max: int = 64 * 1024, objects_max: int | None = None) -> int:
        """Upload what is durable, in so many objects at most; returns the end of the objects."""
        end, disk, left = log.flush(), log.context.disk, objects_max
        epoch = self._epochs.get(log.log_id)
        if epoch is None or epoch.end < log.first_offset:  # the table has the rows between
            claim = EpochClaim("a test")
            epoch = begin_epoch(self.of(log), str(log.name), claim, FakeClock(), first=log.first_offset)
            self._epochs[log.log_id] = epoch
        segments = log.segments
        for segment in segments:
            last = min((one.base for one in segments if one.base > segment.base), default=end)
            if last <= epoch.end:
                continue
            cutter = SegmentCutter(disk, segment, log.log_id)
            cutter.skip_to(max(epoch.end, segment.base), bytes_max)
            while left != 0 and (piece := cutter.next(last, bytes_max)) is not None:
                content = piece.content(disk, epoch.end)
                epoch.put(piece.first, piece.end, content, piece.first_time_us, piece.last_time_us)
                left = None if left is None else left - 1
        return epoch.end

    def remove_below(self, log: TopicLog, offset: int) -> int:
        """Remove objects as their retention does, lowest first; the newest stays. Returns how many are gone."""
        objects = self.of(log).load()
        newest = objects.all()[-1:]
        gone = objects.remove_below(min(offset, newest[0].first) if newest else 0)
        self.known.store.delete(name_of(one) for one in gone)
        if self.known.manifests is not None:
            self.known.manifests.remove(gone)
        return len(gone)
