"""A log of numbered batches that a test opens again and again."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
from segment_files import FOLDER, SCHEMA, SETTINGS, TOPIC, numbers

from frazil import (
    ProducerState,
    Sent,
    Storage,
    Topic,
)
from frazil.core.disk.memory import MemoryDisk
from frazil.log.storage import open_storage
from frazil.testing import FakeClock

FIRST = FOLDER / f"{0:020d}.wal"
AN_HOUR_US = 3_600_000_000


class Logs:
    """One log on a disk, opened again as often as a test likes."""

    def __init__(self, disk: Any = None, **wal: Any) -> None:
        self.disk = disk or MemoryDisk()
        self.clock = FakeClock()
        self.settings = SETTINGS.model_copy(update={"wal": SETTINGS.wal.model_copy(update=wal)})
        self.storage: Storage = open_storage(self.settings, disk=self.disk, clock=self.clock)
        self.topic: Topic = self.storage.topic(TOPIC, schema=SCHEMA)

    def restart(self) -> None:
        self.storage.close()
        self.storage = open_storage(self.settings, disk=self.disk, clock=self.clock)
        self.topic = self.storage.topic(TOPIC)

    def crash(self, seed: int = 0) -> None:
        self.disk = self.disk.crash(random.Random(seed))
        self.storage = open_storage(self.settings, disk=self.disk, clock=self.clock)
        self.topic = self.storage.topic(TOPIC)

    def send(self, sequence: int, count: int = 2, *, producer: str = "p", epoch: int = 0) -> int:
        return self.topic.publish_many(numbers(sequence, count), sent=Sent(producer, epoch, sequence)).start

    def state(self, producer: str = "p") -> ProducerState | None:
        return self.topic.producer_state(producer)

    def values(self) -> list[int]:
        return [value for batch in self.topic.read_batches() for value in batch.column("value").to_pylist()]

    def segments(self) -> list[Path]:
        return sorted(FOLDER / entry.name for entry in self.disk.list(FOLDER) if entry.name.endswith(".wal"))


def log_schema() -> pa.Schema:
    return pa.schema([pa.field("_append_time", pa.timestamp("us", tz="UTC"), nullable=False), *SCHEMA])
