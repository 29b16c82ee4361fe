"""Topics over log, objects and table against a model: whatever is moved, uploaded, compacted, expired and removed
between two steps of a reader, it sees every offset once, in order and unchanged, and `verify` proves it."""

from __future__ import annotations

import random
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings, stateful
from hypothesis import strategies as st
from pyiceberg.table import Table

import frazil
import frazil.lake.read.file_rows
import frazil.lake.read.history_reader
import frazil.lake.read.prefetch
import frazil.objects.reading
from frazil.core.settings import RetentionSettings, make_settings
from frazil.lake.read.history import TableHistories
from frazil.log.info import log_info
from frazil.log.read.reader import BatchReader
from frazil.meta.opening import META_FILE
from frazil.meta.sqlite import SqliteStore
from frazil.node.tiers.logs import FileView
from frazil.node.verify.verify import verify
from frazil.objects.manifests import Manifests
from parts.moving import Floor, HandMover
from parts.owner_uploads import OwnerUploads
from parts.table_rewrites import expire, remove_unneeded_files, rewrite

KIB = 1024
TYPED = "/shop/readings"
TABLES = [["/shop/orders"], ["/shop/clicks-part-0", "/shop/clicks-part-1"], [TYPED]]
"""One table at a time, so that much happens to it: of messages, of two partitions, of typed rows."""
SCHEMAS = [
    pa.schema([pa.field("a", pa.int32(), nullable=False), pa.field("pad", pa.binary())]),
    pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("pad", pa.binary()), pa.field("b", pa.string())]),
    pa.schema(
        [
            pa.field("a", pa.int64(), nullable=False),
            pa.field("pad", pa.binary()),
            pa.field("b", pa.string()),
            pa.field("c", pa.list_(pa.int64())),
        ]
    ),
]
READERS_MAX = 6

numbers = st.integers(0, 1)
"""Which topic of the table; the only one, where there is one."""
seeds = st.integers(0, 2**32 - 1)
parts = st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0])
"""How much of something: none of it, a little, half, most, all."""


@dataclass
class Reading:
    """A reader between two steps: `next` is the offset it must go on with, `end` where it must stop."""

    name: str
    batches: BatchReader
    next: int
    end: int | None


@dataclass
class TopicModel:
    """Every row ever published, and the append times that readers were shown."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    times: dict[int, int] = field(default_factory=dict)

    def check(self, at: int, batch: pa.RecordBatch) -> int:
        """The batch must go on at an offset; returns where the next one must."""
        assert batch.num_rows, "a batch without rows"
        end = at + batch.num_rows
        assert batch.column("_offset").to_pylist() == list(range(at, end)), "a gap, a double or a wrong order"
        assert end <= len(self.rows), "rows that nobody published"
        own = [name for name in batch.schema.names if name in ("_payload", "a", "pad", "b", "c")]
        for offset, row in enumerate(batch.select(own).to_pylist(), at):
            assert row == {name: self.rows[offset].get(name) for name in own}, f"a wrong row at offset {offset}"
        for offset, time_us in enumerate(batch.column("_append_time").cast(pa.int64()).to_pylist(), at):
            assert self.times.setdefault(offset, time_us) == time_us, f"the append time of offset {offset} changed"
        return end


class TiersMachine(stateful.RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="frazil-tiers-"))
        self.patches = pytest.MonkeyPatch()
        self.model: dict[str, TopicModel] = {}
        self.schema = 0
        self.readings: list[Reading] = []
        self.storage: frazil.Storage | None = None
        self.meta: SqliteStore | None = None

    @stateful.initialize(
        names=st.sampled_from(TABLES),
        cache_kib=st.sampled_from([0, 64]),
        ahead=st.sampled_from([1, 5]),
        window=st.sampled_from([2, 30, 1_000]),
        batch=st.sampled_from([1, 20, 1_000]),
        waiting=st.sampled_from([1, 8 * KIB * KIB]),
        with_manifests=st.booleans(),
        chunk=st.sampled_from([1_000, 256 * KIB]),
    )
    def begin(
        self,
        names: list[str],
        cache_kib: int,
        ahead: int,
        window: int,
        batch: int,
        waiting: int,
        with_manifests: bool,
        chunk: int,
    ) -> None:
        """Small windows, batches and channels, so that few rows meet every seam that many would."""
        self.patches.setattr(frazil.lake.read.history_reader, "WINDOW_ROWS_MAX", window)
        self.patches.setattr(frazil.lake.read.history_reader, "WINDOW_ROWS_MIN", window)
        self.patches.setattr(frazil.lake.read.history_reader, "WINDOW_ROWS_MAX", window)
        self.patches.setattr(frazil.lake.read.file_rows, "BATCH_ROWS_MIN", batch)
        self.patches.setattr(frazil.lake.read.file_rows, "BATCH_ROWS_MAX", batch)
        self.patches.setattr(frazil.lake.read.prefetch, "FIRST_BYTES_MAX", waiting)
        self.patches.setattr(frazil.lake.read.prefetch, "AHEAD_BYTES_MAX", waiting)
        wal = {"max_file_size": 64 * KIB, "cache_bytes": cache_kib * KIB}
        reader = {"prefetch_size": ahead, "max_concurrent_reads": ahead}
        self.patches.setattr(frazil.objects.reading, "CHUNK_FIRST_BYTES", chunk)
        self.patches.setattr(frazil.objects.reading, "CHUNK_MAX_BYTES", 4 * chunk)
        objects = {"enabled": True, "store": {"type": "memory", "bucket": str(self.folder)}}
        folder = self.folder / "data"
        self.settings = make_settings({"data": folder, "wal": wal, "reader": reader, "objects": objects})
        self.meta = SqliteStore(folder / META_FILE) if with_manifests else None
        self.mover = HandMover(self.settings)
        self.floor = Floor()
        self.model = {name: TopicModel() for name in names}
        self._open()
        for number in range(len(names)):
            self.pass_on(number, 4, 3)

    def teardown(self) -> None:
        try:
            if self.storage is not None:
                self._finish()
        finally:
            self._close()
            if self.meta is not None:
                self.meta.close()
            self.patches.undo()
            shutil.rmtree(self.folder)

    # --- the log

    @stateful.rule(number=numbers, groups=st.integers(1, 3), each=st.integers(1, 25), kib=st.sampled_from([0, 1, 4]))
    def publish(self, number: int, groups: int, each: int, kib: int) -> None:
        for _ in range(groups):
            self._publish(self._name(number), each, bytes(kib * KIB))

    def _publish(self, name: str, count: int, pad: bytes) -> None:
        rows = self.model[name].rows
        start = len(rows)
        topic = self._topic(name)
        if name != TYPED:
            new = [{"_payload": b"%d:" % offset + pad} for offset in range(start, start + count)]
            found = topic.publish_many([row["_payload"] for row in new])
        else:
            full = [
                {"a": offset, "pad": pad, "b": None if offset % 3 else f"b{offset}", "c": [offset] * (offset % 3)}
                for offset in range(start, start + count)
            ]
            schema = SCHEMAS[self.schema]
            new = [{key: row[key] for key in schema.names} for row in full]
            found = topic.publish_many(pa.RecordBatch.from_pylist(new, schema=schema))
        assert found.start == start
        rows += new

    @stateful.rule()
    def change_schema(self) -> None:
        if TYPED in self.model and self.schema + 1 < len(SCHEMAS):
            assert self.storage is not None
            self.schema += 1
            self.storage.change_schema(TYPED, SCHEMAS[self.schema])

    @stateful.rule(number=numbers)
    def remove_segments(self, number: int) -> None:
        """Retention takes what the table or the objects have."""
        assert self.storage is not None
        name = self._name(number)
        log = self._topic(name).log
        self.floor.ends[log.log_id] = max(self._table_end(name), self.uploads.end(log))
        self.storage.set_retention(name, RetentionSettings(bytes=1))
        self.storage.maintain()

    @stateful.rule()
    def restart(self) -> None:
        """Readers of the storage that was closed go on in the new one, by their offset alone."""
        self._close()
        self._open()
        for reading in self.readings:
            follow = reading.end is None
            reading.batches = self._topic(reading.name).read_batches(reading.next, end=reading.end, follow=follow)

    # --- the objects

    @stateful.rule(number=numbers, kib=st.sampled_from([1, 16, 64]), objects_max=st.none() | st.integers(1, 5))
    def upload(self, number: int, kib: int, objects_max: int | None) -> None:
        log = self._topic(self._name(number)).log
        if self.uploads.end(log) or self._table_end(self._name(number)) >= log.first_offset:
            self.uploads.upload(log, kib * KIB, objects_max)

    @stateful.rule(number=numbers, part=parts)
    def remove_objects(self, number: int, part: float) -> None:
        """Retention of objects takes what the table has."""
        name = self._name(number)
        self.uploads.remove_below(self._topic(name).log, round(self._table_end(name) * part))

    @stateful.rule(number=numbers)
    def wipe_manifests(self, number: int) -> None:
        """They are found again in the store, from the next start on."""
        manifests = self.uploads.known.manifests
        if manifests is not None:
            manifests.remove_log(self._topic(self._name(number)).log.log_id)

    # --- the table

    @stateful.rule(number=numbers, part=parts, files=st.integers(1, 3))
    def move(self, number: int, part: float, files: int) -> None:
        name = self._name(number)
        topic, start = self._topic(name), self._table_end(name)
        self.mover.move(topic, start + round((len(self.model[name].rows) - start) * part), files)

    @stateful.rule(number=numbers, groups=st.integers(2, 6), files=st.integers(1, 3))
    def pass_on(self, number: int, groups: int, files: int) -> None:
        """Rows for more than a segment, moved at once and removed from the log."""
        self.publish(number, groups, 20, 4)
        self.move(number, 1.0, files)
        self.remove_segments(number)

    @stateful.rule(number=numbers, low=parts, high=parts, seed=seeds, cuts=st.integers(0, 6))
    def compact(self, number: int, low: float, high: float, seed: int, cuts: int) -> None:
        """A part of the table, or all of it."""
        end = self._table_end(self._name(number))
        wanted = f"_offset >= {int(end * low)} and _offset < {int(end * high)}"
        rewrite(self._table(), wanted if low < high else "_offset >= 0", seed, cuts)

    @stateful.rule(kept=st.integers(1, 3))
    def expire(self, kept: int) -> None:
        expire(self._table(), kept)

    @stateful.rule()
    def remove_unneeded_files(self) -> None:
        remove_unneeded_files(self._table())

    @stateful.rule(seed=seeds, cuts=st.integers(0, 6))
    def maintain_at_once(self, seed: int, cuts: int) -> None:
        """All of it together, so that nothing is left of the files that readers have planned."""
        rewrite(self._table(), "_offset >= 0", seed, cuts)
        expire(self._table(), 1)
        remove_unneeded_files(self._table())

    # --- readers

    @stateful.rule(number=numbers, part=parts, length=st.none() | parts, follow=st.booleans(), steps=st.integers(0, 2))
    def start_reading(self, number: int, part: float, length: float | None, follow: bool, steps: int) -> None:
        if len(self.readings) == READERS_MAX:
            self.readings.pop(0).batches.close()
        name = self._name(number)
        last = len(self.model[name].rows)
        start = int(last * part)
        end = None if follow and length is None else last
        if length is not None:
            end = start + int((last - start) * length)
        batches = self._topic(name).read_batches(start, end=end, follow=follow)
        self.readings.append(Reading(name, batches, start, end))
        self._read_on(self.readings[-1], steps)

    @stateful.rule(number=numbers, part=parts, steps=st.integers(1, 3), seed=seeds, cuts=st.integers(0, 6))
    def read_while_all_files_change(self, number: int, part: float, steps: int, seed: int, cuts: int) -> None:
        self.start_reading(number, part, None, False, steps)
        self.maintain_at_once(seed, cuts)
        self._read_on(self.readings[-1], 1_000_000)

    @stateful.rule(which=st.integers(0, READERS_MAX - 1), steps=st.sampled_from([1, 2, 5, 1_000]))
    def go_on_reading(self, which: int, steps: int) -> None:
        if self.readings:
            self._read_on(self.readings[which % len(self.readings)], steps)

    @stateful.rule(number=numbers, seed=seeds)
    def read_from_a_time(self, number: int, seed: int) -> None:
        """The first row with that time or a later one, wherever it is."""
        name = self._name(number)
        times = self.model[name].times
        if times:
            offset = random.Random(seed).choice(sorted(times))
            batch = next(self._topic(name).read_batches(_time(times[offset])))
            first = batch.column("_offset")[0].as_py()
            assert first <= offset
            assert batch.column("_append_time").cast(pa.int64())[0].as_py() == times[offset]
            assert times.get(first - 1, -1) < times[offset]

    @stateful.rule(number=numbers)
    def prove(self, number: int) -> None:
        assert self.storage is not None
        name, storage = self._name(number), self.storage
        history = TableHistories(self.settings).of(self._topic(name).log.name, self._topic(name).log.log_id)
        view = FileView(self.settings)
        proof = verify(lambda: log_info(storage, name), view.read, history, lambda _: None, view.read_objects)
        assert proof.proven, proof.problems
        held = self.uploads.of(self._topic(name).log).load().all()
        assert proof.in_objects == sum(one.end - one.first for one in held)
        assert proof.end == len(self.model[name].rows)
        assert proof.in_table == self._table_end(name)
        assert proof.checksums

    # --- the machinery

    def _read_on(self, reading: Reading, steps: int) -> None:
        expected = self.model[reading.name]
        end = len(expected.rows) if reading.end is None else reading.end
        for _ in range(steps):
            batch = reading.batches.poll()
            if batch is None:
                assert reading.next == end, f"the reader stops at {reading.next}, not at {end}"
                return
            reading.next = expected.check(reading.next, batch)
            assert reading.next <= end, "rows behind the end that was asked for"
            assert reading.batches.offset == reading.next

    def _finish(self) -> None:
        """Every reader gets to its end, everything can be read from the start, and the proof holds."""
        for reading in self.readings:
            self._read_on(reading, 1_000_000)
        for number, (name, expected) in enumerate(self.model.items()):
            at = 0
            for batch in self._topic(name).read_batches("earliest"):
                at = expected.check(at, batch)
            assert at == len(expected.rows)
            self.prove(number)

    def _open(self) -> None:
        self.uploads = OwnerUploads(self.settings, None if self.meta is None else Manifests(self.meta))
        self.storage = self.uploads.open(self.floor)

    def _close(self) -> None:
        for reading in self.readings:
            reading.batches.close()
        if self.storage is not None:
            self.storage.close()
            self.storage = None

    def _name(self, number: int) -> str:
        names = list(self.model)
        return names[number % len(names)]

    def _table(self) -> Table:
        table: Table = self.mover.table(self._topic(self._name(0)))
        return table

    def _topic(self, name: str) -> frazil.Topic:
        assert self.storage is not None
        return self.storage.topic(name, schema=SCHEMAS[self.schema] if name == TYPED else None)

    def _table_end(self, name: str) -> int:
        topic = self._topic(name)
        history = TableHistories(self.settings).of(topic.log.name, topic.log.log_id)
        held = None if history is None else history.look()
        return 0 if held is None else held[1]


def _time(time_us: int) -> Any:
    return pa.scalar(time_us, pa.timestamp("us", "UTC")).as_py()


@pytest.mark.timeout(3_600)
class TestTiers(TiersMachine.TestCase):
    settings = settings(max_examples=settings().max_examples // 25, stateful_step_count=30)
