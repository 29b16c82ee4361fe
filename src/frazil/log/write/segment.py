"""A segment file: its metadata, and the one writer that appends to it."""

from __future__ import annotations

import bisect
import errno
from dataclasses import dataclass, field
from pathlib import Path

from typing_extensions import Buffer

from frazil.core.disk import NO_ROOM, Disk, File
from frazil.core.settings import KIB, MIB
from frazil.log.folder.layout import SUFFIX
from frazil.log.format.frames import HEADER_BYTES, MARK_BYTES, SegmentHead, pack_head, pack_header, pack_mark
from frazil.log.write.disk_budget import DiskBudget

NEW_SUFFIX = ".new"
INDEX_STEP_BYTES = 256 * KIB

_ALLOCATE_FIRST_BYTES = 16 * KIB
_ALLOCATE_STEP_MAX_BYTES = 16 * MIB
_ZEROS_STEP_MAX_BYTES = 1 * MIB
_SMALL_FRAME_BYTES = 16 * KIB
_PAGE_BYTES = 4096


class SyncFailed(Exception):
    """The device did not accept the data. Which part of it is durable is unknown, and stays so."""


def segment_path(folder: Path, base: int) -> Path:
    return folder / f"{base:020d}{SUFFIX}"


@dataclass(slots=True, eq=False)
class Segment:
    """One file of a topic: the rows from `base` up to the base of the next."""

    base: int
    path: Path
    used_bytes: int
    allocated_bytes: int
    sealed: bool
    log_id: str | None = None  # its log id, if known: all rows must belong to it
    first_time_us: int | None = None
    last_time_us: int | None = None
    index: list[tuple[int, int]] = field(default_factory=list)

    def note(self, offset: int, position: int) -> None:
        """Remember a frame's position now and then, so that a seek need not start at the beginning."""
        if not self.index or position >= self.index[-1][1] + INDEX_STEP_BYTES:
            self.index.append((offset, position))

    def position_before(self, offset: int) -> int:
        """Return the position of a frame before `offset`; 0 if none is known."""
        index = self.index
        at = bisect.bisect_right(index, offset, key=_first) - 1
        return index[at][1] if at >= 0 else 0


def _first(place: tuple[int, int]) -> int:
    return place[0]


class SegmentWriter:
    """Appends frames. One caller at a time; the file may be parked (closed) between calls."""

    __slots__ = ("_budget", "_disk", "_file", "head", "segment", "size_max", "unsynced_bytes")

    def __init__(self, disk: Disk, budget: DiskBudget, segment: Segment, head: SegmentHead, size_max: int) -> None:
        self._disk = disk
        self._budget = budget
        self._file: File | None = None
        self.segment = segment
        self.head = head
        self.size_max = size_max
        self.unsynced_bytes = 0

    @classmethod
    def create(
        cls,
        disk: Disk,
        budget: DiskBudget,
        folder: Path,
        base: int,
        head: SegmentHead,
        size_max: int,
        producers: bytes = b"",
    ) -> SegmentWriter:
        """Create a segment. Its name appears only once its schema frame is durable, and before any row."""
        path = segment_path(folder, base)
        writer = cls(disk, budget, Segment(base, path, 0, 0, sealed=False, log_id=head.log_id), head, size_max)
        unnamed = path.with_name(path.name + NEW_SUFFIX)
        writer._file = _created(disk, unnamed)
        try:
            writer._write([pack_head(base, head, producers)], allocate=False)
            writer.sync()
            disk.rename(unnamed, path)
            disk.sync_folder(folder)
        except BaseException:
            writer.park()
            budget.give_back(writer.segment.allocated_bytes)
            raise
        return writer

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def fits(self, payload_bytes: int) -> bool:
        return self.segment.used_bytes + HEADER_BYTES + payload_bytes + MARK_BYTES <= self.size_max

    def is_old(self, age_ms: int | None, now_us: int) -> bool:
        first_us = self.segment.first_time_us
        return age_ms is not None and first_us is not None and now_us - first_us >= age_ms * 1_000

    def append(self, offset: int, payload: Buffer, *, after_mark: bool) -> int:
        """Write one frame, preceded by a mark if requested; returns the frame's position. Nothing is synced yet."""
        pieces: list[Buffer] = [pack_mark(offset)] if after_mark else []
        position = self.segment.used_bytes + (MARK_BYTES if after_mark else 0)
        pieces += [pack_header(offset, payload), payload]
        self._write(pieces)
        self.segment.note(offset, position)
        return position

    def sync(self) -> None:
        """Return once all written data is on the device, or raise `SyncFailed`."""
        if self.unsynced_bytes:
            self._sync_file()
        self.unsynced_bytes = 0

    def _sync_file(self) -> None:
        file = self._opened()  # without a descriptor, nothing has failed yet
        try:
            file.sync()
        except OSError as error:
            raise SyncFailed(error.strerror or str(error)) from error

    def seal(self, end: int) -> None:
        """Close permanently: a mark at the end, and no preallocated space after it."""
        self.sync()
        self._write([pack_mark(end)], allocate=False)
        file = self._opened()
        file.truncate(self.segment.used_bytes)
        self._sync_file()
        self.unsynced_bytes = 0
        self._budget.give_back(self.segment.allocated_bytes - self.segment.used_bytes)
        self.segment.allocated_bytes = self.segment.used_bytes
        self.segment.sealed = True
        self.park()

    def park(self) -> None:
        """Close the file; the next write opens it again."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _opened(self) -> File:
        if self._file is None:
            self._file = self._disk.open(self.segment.path, "write")
        return self._file

    def _write(self, pieces: list[Buffer], *, allocate: bool = True) -> None:
        """Write all pieces or nothing: a failed write is cut back to the last good frame."""
        file = self._opened()
        segment = self.segment
        length = sum(memoryview(piece).nbytes for piece in pieces)
        end = segment.used_bytes + length
        try:
            if end > segment.allocated_bytes:
                self._allocate(file, end, exactly=not allocate)
            file.write(pieces, segment.used_bytes)
        except BaseException:
            self._cut_back(file, segment.used_bytes)
            self._budget.give_back(segment.allocated_bytes - segment.used_bytes)
            segment.allocated_bytes = segment.used_bytes
            raise
        segment.used_bytes = end
        self.unsynced_bytes += length

    def _allocate(self, file: File, end: int, *, exactly: bool) -> None:
        """Preallocate in steps that double with the file, so that a quiet topic reserves little.

        A write into blocks that were written before changes no metadata, so its sync is the fastest. For small frames
        it pays to write zeros ahead; large ones would only be written twice.
        """
        have = self.segment.allocated_bytes
        small = end - self.segment.used_bytes <= _SMALL_FRAME_BYTES
        step = min(max(have, _ALLOCATE_FIRST_BYTES), _ZEROS_STEP_MAX_BYTES if small else _ALLOCATE_STEP_MAX_BYTES)
        ample = -(-max(end, min(have + step, self.size_max)) // _PAGE_BYTES) * _PAGE_BYTES
        for target in [end] if exactly else [ample, end]:
            if exactly:
                self._budget.found(
                    target - have
                )  # segment heads and closing marks bypass the budget: removal depends on them
            elif target == end:
                self._budget.take(target - have)
            elif not self._budget.try_take(target - have):
                continue
            self.segment.allocated_bytes = target
            try:
                if small:
                    file.write([bytes(target - have)], have)
                else:
                    file.allocate(have, target - have)
            except OSError as error:
                self._cut_back(file, have)
                self._budget.give_back(target - have)
                self.segment.allocated_bytes = have
                if error.errno not in NO_ROOM or target == end:
                    raise
            else:
                return

    def _cut_back(self, file: File, size: int) -> None:
        """Undo a partial write. If that fails too, the segment can no longer be trusted."""
        try:
            file.truncate(size)
        except OSError as error:
            raise OSError(errno.EIO, f"a failed write could not be undone: {error.strerror}") from error


def _created(disk: Disk, path: Path) -> File:
    try:
        return disk.open(path, "create")
    except FileExistsError:
        disk.remove(path)  # left by a crash before it got its name: it never held a row
        return disk.open(path, "create")
