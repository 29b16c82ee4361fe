"""A hand that uploads a log: its segments cut into objects as the product cuts them, when a test wants it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from frazil.core.stored_objects import StoredObject
from frazil.log.format.frames import Frame, pack_header, unpack_batch, unpack_head
from frazil.log.read.segment_reader import FrameStream, append_times_us
from frazil.log.topic_log import TopicLog
from frazil.objects.log_objects import LogObjects
from frazil.objects.names import ObjectName
from frazil.objects.packing import Fence, pack_fence, pack_object
from frazil.objects.store import ObjectStore
from frazil.objects.upload.cutting import SegmentCutter


@dataclass
class HandUploader:
    """Uploads one log. `objects` is what its owner knows of them."""

    store: ObjectStore
    log: TopicLog
    epoch: int = 1
    stored: int = 0
    """What the objects say was stored before them."""

    def __post_init__(self) -> None:
        self.objects = LogObjects(self.log.log_id, self.epoch)

    def now(self) -> LogObjects:
        return self.objects

    def load(self) -> LogObjects:
        return self.objects

    def upload(self, end: int | None = None, frames_max: int = 5, *, known_times: bool = True) -> int:
        """Upload whole frames from where the objects end, as long as they begin before `end`; returns the new end."""
        end = self.log.flush() if end is None else end
        start = self.objects.end
        waiting: list[tuple[int, Frame]] = []
        for segment in self.log.segments:
            for last, frame in self._frames(segment.path, segment.base):
                if start <= frame.offset < end and not frame.is_mark:
                    waiting.append((last, frame))
            while waiting:
                self._put(waiting[:frames_max], known_times=known_times)
                del waiting[:frames_max]
        return self.objects.end

    def _frames(self, path, base: int) -> Iterator[tuple[int, Frame]]:  # type: ignore[no-untyped-def]
        """Yield each frame of a segment with the offset behind its rows."""
        file = self.log.context.disk.open(path, "read")
        try:
            stream = FrameStream(file)
            head = stream.next()
            assert head is not None
            self._head = unpack_head(str(path), head)
            offset = base
            while offset < self.log.durable_end and (frame := stream.next()) is not None:
                if not frame.is_mark:
                    offset += unpack_batch(str(path), frame, self._head.schema).num_rows
                yield offset, frame
        finally:
            file.close()

    def _put(self, frames: list[tuple[int, Frame]], *, known_times: bool) -> None:
        first, end = frames[0][1].offset, frames[-1][0]
        parts = [part for _, frame in frames for part in (pack_header(frame.offset, frame.payload), frame.payload)]
        content = b"".join(bytes(part) for part in pack_object(first, end, self._head, b"", parts, stored=self.stored))
        etag = self.store.create(str(ObjectName(self.log.log_id, self.epoch, first)), content)
        rows = [unpack_batch("", frame, self._head.schema) for _, frame in frames]
        times = (int(append_times_us(rows[0])[0]), int(append_times_us(rows[-1])[-1])) if known_times else (None, None)
        self.objects.add(StoredObject(self.log.log_id, self.epoch, first, end, len(content), etag, None, *times))


def upload_log(
    store: ObjectStore, log: TopicLog, bytes_max: int = 64 * 1024, epoch: int = 1, after: int = 0
) -> list[StoredObject]:
    """Upload a log's files behind an offset with the producers, as its owner does; returns the objects."""
    end, found = log.flush(), []
    if not after:
        first = Fence(epoch, "owner", log.first_offset, "a claim", "", str(log.name))
        store.create(str(ObjectName(log.log_id, 0, 0)), pack_fence(0, first))
    for segment in log.segments:
        cutter = SegmentCutter(log.context.disk, segment, log.log_id)
        last = min((one.base for one in log.segments if one.base > segment.base), default=end)
        if last <= after:
            continue
        cutter.skip_to(max(after, segment.base), bytes_max)
        while (piece := cutter.next(last, bytes_max)) is not None:
            content = piece.content(log.context.disk, piece.first)
            name = ObjectName(log.log_id, epoch, piece.first)
            etag = store.create(str(name), content)
            found.append(StoredObject(*name, piece.end, len(content), etag))
    return found
