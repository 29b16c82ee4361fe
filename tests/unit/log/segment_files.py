"""Small logs on a disk in RAM whose bytes can be changed at will."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from frazil import CorruptLog, Settings, SyncMode, WalSettings
from frazil.core.disk.memory import MemoryDisk
from frazil.log.format.frames import Frame
from frazil.log.read.segment_reader import FrameStream, SegmentReader
from frazil.log.repair.recovery import Recovered, recover
from frazil.log.storage import open_storage
from frazil.testing import FakeClock

TOPIC = "/default/numbers"
LOG = Path("/data/log")
FOLDER = LOG / "default/numbers"
SCHEMA = pa.schema([pa.field("value", pa.int64(), nullable=False)])
SETTINGS = Settings(data=Path("/data"), wal=WalSettings(max_file_size=64 * 1024, cache_capacity=0))


def numbers(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(range(first, first + count), pa.int64())}, schema=SCHEMA)


def get(disk: MemoryDisk, path: Path) -> bytes:
    file = disk.open(path, "read")
    return file.read(file.size(), 0)


def put(disk: MemoryDisk, path: Path, data: bytes) -> None:
    try:
        file = disk.open(path, "write")
    except FileNotFoundError:
        file = disk.open(path, "create")
    file.truncate(0)
    file.write([data], 0)


@dataclass
class SmallLog:
    """A closed log, its rows (each holds its own offset), and its segments as bytes."""

    disk: MemoryDisk
    log_id: str
    end: int
    segments: dict[Path, bytes]

    @property
    def last(self) -> Path:
        return max(self.segments)

    def restore(self) -> None:
        for entry in self.disk.list(FOLDER):
            if entry.name != "topic.json" and FOLDER / entry.name not in self.segments:
                self.disk.remove(FOLDER / entry.name)
        for path, data in self.segments.items():
            put(self.disk, path, data)

    def recover(self, end_min: int) -> tuple[Recovered, list[int]]:
        """Recover, and read every row back with the offset it was found at."""
        recovered = recover(self.disk, FOLDER, self.log_id, 0, end_min)
        rows: list[int] = []
        for segment in recovered.segments:
            reader = SegmentReader(self.disk, segment)
            for batch in reader:
                values = batch.rows.column("value").to_pylist()
                assert values == list(range(batch.offset, batch.end)), "a wrong row was delivered"
                rows += values
            reader.close()
        assert rows == list(range(recovered.segments[0].base, recovered.end)), "a gap or a double"
        return recovered, rows


def make_log(
    frames: int, *, rotate_every: int | None = None, mode: SyncMode = SyncMode.ALWAYS, sync_after: int | None = None
) -> SmallLog:
    """Frames of one to three rows whose values are their offsets; a new segment after every so many frames."""
    disk, clock = MemoryDisk(), FakeClock()
    wal = SETTINGS.wal.model_copy(update={"max_file_age_ms": 1_000 if rotate_every else None, "sync_mode": mode})
    storage = open_storage(SETTINGS.model_copy(update={"wal": wal}), disk=disk, clock=clock)
    topic = storage.create_topic(TOPIC, schema=SCHEMA)
    end = 0
    for number in range(frames):
        if rotate_every and number and number % rotate_every == 0:
            clock.step_wall(1_000_000)
        end = topic.publish_many(numbers(end, 1 + number % 3)).end
        if number + 1 == sync_after:
            topic.sync()
    log_id = topic.stats().log_id
    storage.close()
    paths = [FOLDER / entry.name for entry in disk.list(FOLDER) if entry.name.endswith(".wal")]
    return SmallLog(disk, log_id, end, {path: get(disk, path) for path in sorted(paths)})


def frames_of(disk: MemoryDisk, path: Path) -> list[Frame]:
    stream = FrameStream(disk.open(path, "read"))
    found = []
    while (frame := stream.next()) is not None:
        found.append(frame)
    return found


def check_refusal(error: CorruptLog, path: Path | None = None) -> None:
    """A refusal says where: the file and a place in it."""
    assert error.path.startswith(str(LOG))
    assert isinstance(error.position, int)
    assert error.position >= 0
    if path is not None:
        assert error.path == str(path)
