"""The point from which a log continues whose disk is lost: its end, producers and last append time, from its objects.

    load_objects      which objects count
    continuation      `AdoptedLog`, from the last of them: the producers in its head, and what its frames say of them

The next owner takes the log by a fence first (`objects.epoch`), so that the end does not move meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from isal.isal_zlib import crc32

from frazil.core.disk.memory import MemoryDisk
from frazil.core.errors import CorruptLog, NewerFormat, ObjectDamaged
from frazil.core.rows import ENVELOPE
from frazil.core.settings import AckLevel, RetentionSettings
from frazil.core.stored_objects import StoredObject
from frazil.log.folder.adoption import AdoptedLog
from frazil.log.repair.recovery import Scan, scan_segment
from frazil.log.retention.dropped import DroppedRange
from frazil.log.write.producers import Producers, ProducersRecord
from frazil.log.write.segment import Segment
from frazil.objects.reading import name_of, read_bytes
from frazil.objects.store import ObjectStore


@dataclass(frozen=True, slots=True)
class Stated:
    """Facts of a log from its record in the metadata store, if there is one. They override those of objects."""

    schema: pa.Schema | None = None
    """The columns of a typed topic."""
    created_us: int | None = None
    retention: RetentionSettings | None = None
    taken: ProducersRecord | None = None
    """The names that producers have taken; see `AdoptedLog.taken`."""
    ack: AckLevel = AckLevel.DISK
    dropped: tuple[DroppedRange, ...] = ()
    """Rows that retention has removed, and that no table holds."""


def continuation(
    store: ObjectStore, log_id: str, objects: Sequence[StoredObject], end: int, stated: Stated | None = None
) -> AdoptedLog:
    """Return the point from which the log continues: at `end`, after all `objects` that count.

    Both are as `load_objects` found them. Raises `ObjectDamaged` if the last object is not what was uploaded. If `end`
    is beyond it, the loss of the rows between was accepted: producers go on at the first of theirs that is lost.
    """
    stated = stated or Stated()
    last = read_last(store, objects[-1]) if objects else None
    schema = stated.schema
    if last is not None and schema is None and not last.head.schema.equals(ENVELOPE):
        schema = pa.schema(list(last.head.schema)[1:])
    return AdoptedLog(
        log_id,
        end,
        schema,
        Producers() if last is None else last.producers,
        0 if last is None else last.last_time_us,
        _created_us(objects) if stated.created_us is None else stated.created_us,
        stated.retention,
        stated.taken,
        stated.ack,
        stated.dropped,
    )


def read_last(store: ObjectStore, one: StoredObject) -> Scan:
    """Read a whole object and check it as recovery checks a segment; returns its head and the producers at its end."""
    name = name_of(one)
    content = read_bytes(store, one, 0, one.size_bytes)
    if one.crc is not None and crc32(content) != one.crc:
        raise ObjectDamaged(name, 0, "the checksum of the whole object is not that of its manifest")
    disk, path = MemoryDisk(), Path("/") / Path(name).name
    file = disk.open(path, "create")
    file.write([content], 0)
    segment = Segment(one.first, Path(name), one.size_bytes, one.size_bytes, sealed=True)
    try:
        scan, _ = scan_segment(file, segment, one.log_id)
    except NewerFormat:
        raise
    except CorruptLog as error:
        raise ObjectDamaged(name, int(error.fields["position"]), str(error.fields["reason"])) from None
    if scan.bad is not None or not scan.sealed or scan.end != one.end:
        why = scan.bad or f"it ends at offset {scan.end}, not with a mark at offset {one.end}"
        raise ObjectDamaged(name, scan.end_position, why)
    return scan


def _created_us(objects: Sequence[StoredObject]) -> int:
    """Return a time not after the log's creation is known: that of the first row or object that is there."""
    first = objects[0] if objects else None
    return 0 if first is None else first.first_time_us or first.uploaded_us
