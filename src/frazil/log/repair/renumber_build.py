"""Build the log that replaces one whose table is ahead: its rows from a cut on, with offsets after the table's end.
Frames are copied with only their offsets changed, so no row is changed.

Producers that have written since the cut stay known by those rows. The table may have rows of all others that the log
lost, so they are forgotten: a batch with an old sequence then has an unknown outcome, and is never treated as new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from frazil.core.disk import Disk
from frazil.core.errors import CorruptLog, LogFailed, TableRefused
from frazil.core.rows import stored_schema
from frazil.core.settings import WalSettings
from frazil.log.folder.catalog import TopicRecord
from frazil.log.folder.former import FormerLog, with_former
from frazil.log.folder.layout import TOPIC_FILE
from frazil.log.format.frames import BadFrame, Frame, SegmentHead, check_owner, sent_text, unpack_batch, unpack_head
from frazil.log.format.records import open_to_read, temporary_disk_errors, write_record
from frazil.log.read.segment_reader import FrameStream
from frazil.log.repair.recovery import Recovered
from frazil.log.write.disk_budget import DiskBudget
from frazil.log.write.producers import BadProducers, Producers, SentRows, next_generation, sent_from_text
from frazil.log.write.segment import Segment, SegmentWriter, SyncFailed

OnRows = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Renumbering:
    """Rows of the log from `former.cut` on get the offsets from `former.table_end` on, under the new `log_id`."""

    log_id: str
    former: FormerLog
    last_time_us: int
    """Append time of the table's last row: no later row is older."""


def build_log(
    disk: Disk,
    settings: WalSettings,
    record: TopicRecord,
    recovered: Recovered,
    what: Renumbering,
    target: Path,
    on_rows: OnRows,
) -> None:
    """Build a topic folder with record and segments, durable on return; only `target` is changed."""
    epochs = [*recovered.producers.epochs().values(), *record.epochs.values()]
    floor = max([record.floor, recovered.producers.floor, *(next_generation(epoch) for epoch in epochs)])
    copy = _Copy(disk, settings, record, what, target, Producers(floor=floor))
    try:
        with temporary_disk_errors(target):
            disk.make_folder(target)
            for segment in _from(recovered.segments, what.former.cut):
                copy.add(segment, recovered.end, on_rows)
            copy.end()
            write_record(disk, target / TOPIC_FILE, _record(record, recovered, what, copy.producers).as_content())
            disk.sync_folder(target)
    except SyncFailed as error:
        raise LogFailed(str(record.name), str(error)) from error
    finally:
        copy.park()


def _from(segments: Sequence[Segment], offset: int) -> list[Segment]:
    """Return the segments with rows from `offset` on."""
    bases = [segment.base for segment in segments]
    return [
        segment
        for segment, following in zip(segments, [*bases[1:], None], strict=True)
        if following is None or following > offset
    ]


def _record(record: TopicRecord, recovered: Recovered, what: Renumbering, producers: Producers) -> TopicRecord:
    """Build the record, without the forgotten producers."""
    known = producers.epochs().keys()
    return replace(
        record,
        log_id=what.log_id,
        first_offset=what.former.table_end,
        epochs={name: epoch for name, epoch in record.epochs.items() if name in known},
        clients={name: client for name, client in record.clients.items() if name in known},
        floor=producers.floor,
        last_time_us=max(record.last_time_us, recovered.last_time_us, what.last_time_us),
        former=with_former(record.former, what.former),
        object_epoch=0,
    )


class _Copy:
    def __init__(
        self,
        disk: Disk,
        settings: WalSettings,
        record: TopicRecord,
        what: Renumbering,
        target: Path,
        producers: Producers,
    ) -> None:
        self._disk = disk
        self._settings = settings
        self._record = record
        self._what = what
        self._target = target
        self._writer: SegmentWriter | None = None
        self._end = what.former.table_end
        self.producers = producers

    def add(self, segment: Segment, end: int, on_rows: OnRows) -> None:
        """Add the segment's rows from the cut up to `end`."""
        for head, frame, rows in _frames(self._disk, segment, self._record.log_id):
            if frame.offset >= end:
                return
            if frame.offset >= self._what.former.cut:
                self._append(segment, head, frame, rows)
                on_rows(rows.num_rows)
            elif frame.offset + rows.num_rows > self._what.former.cut:
                raise TableRefused(
                    f"{self._record.name}: the rows from offset {frame.offset} on were appended together, and the table"
                    f" has a part of them, up to {self._what.former.cut}; it was changed by another engine",
                    topic=str(self._record.name),
                )

    def _append(self, segment: Segment, head: SegmentHead, frame: Frame, rows: pa.RecordBatch) -> None:
        writer = self._writer_for(head.schema, len(frame.payload))
        writer.append(self._end, frame.payload, after_mark=False)
        try:
            for row, count, sent in _sent(str(segment.path), frame, rows):
                self.producers.replay(sent, count, self._end + row)
        except BadProducers as error:
            raise CorruptLog(str(segment.path), frame.position, str(error)) from None
        self._end += rows.num_rows

    def _writer_for(self, schema: pa.Schema, payload_bytes: int) -> SegmentWriter:
        writer = self._writer
        if writer is not None and writer.segment.base < self._end:
            if writer.head.schema.equals(schema) and writer.fits(payload_bytes):
                return writer
            writer.seal(self._end)
            writer = None
        if writer is None:
            name, mode = str(self._record.name), self._settings.sync_mode
            head = SegmentHead(self._what.log_id, name, mode, schema)
            place = (self._target, self._end, head, self._settings.max_file_size, self.producers.as_text())
            writer = self._writer = SegmentWriter.create(self._disk, DiskBudget(None), *place)
        return writer

    def end(self) -> None:
        """Finish: a log without rows gets an empty segment, which keeps its next offset."""
        if self._writer is None:
            self._writer_for(stored_schema(self._record.schema), 0)
        assert self._writer is not None
        self._writer.sync()

    def park(self) -> None:
        if self._writer is not None:
            self._writer.park()


def _frames(disk: Disk, segment: Segment, log_id: str) -> Iterator[tuple[SegmentHead, Frame, pa.RecordBatch]]:
    """Yield the batch frames of a segment, each fully checked."""
    path = str(segment.path)
    file = open_to_read(disk, segment.path)
    try:
        frames = FrameStream(file)
        first = frames.next()
        if first is None:
            raise CorruptLog(path, 0, "the schema frame is missing")
        head = unpack_head(path, first)
        check_owner(path, head, log_id)
        while (frame := frames.next()) is not None:
            if not frame.is_mark:
                yield head, frame, unpack_batch(path, frame, head.schema)
    except BadFrame as error:
        raise CorruptLog(path, frames.position, str(error)) from None
    finally:
        file.close()


def _sent(path: str, frame: Frame, rows: pa.RecordBatch) -> list[SentRows]:
    text = sent_text(path, frame, rows.schema)
    return sent_from_text(text, rows.num_rows) if text else []
