"""A model of what a log promises, and a way to hold a storage on a faulty disk against it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from frazil import RetentionSettings, Sent, Settings, Storage, SyncMode, Topic, WalSettings
from frazil.log.storage import open_storage
from frazil.testing import FakeClock, FaultyDisk, PowerCut

SEGMENT_BYTES = 64 * 1024
SCHEMA = pa.schema([pa.field("value", pa.binary(), nullable=False)])
WIDER_SCHEMA = pa.schema([*SCHEMA, pa.field("more", pa.int64())])


def settings_of(
    mode: SyncMode, *, retention: RetentionSettings | None = None, cache_bytes: int = 0, file_age_ms: int | None = None
) -> Settings:
    wal = WalSettings(
        max_file_size=SEGMENT_BYTES,
        max_file_age_ms=file_age_ms,
        sync_mode=mode,
        fsync_interval_ms=3_600_000,  # a test says itself when to sync
        max_batch_bytes=40_000,
        cache_bytes=cache_bytes,
        retention=retention or RetentionSettings(),
    )
    return Settings(data="/data", wal=wal)


@dataclass
class TopicModel:
    """Every row ever acknowledged, by offset, and what may or may not be there besides."""

    typed: bool = False
    certain: bool = False  # the topic was made, and not yet asked to go
    possible: bool = True  # it may be there at all
    rows: list[bytes] = field(default_factory=list)
    ends: set[int] = field(default_factory=lambda: {0})  # where groups end: a group is there wholly or not at all
    durable: int = 0
    pending: list[list[bytes]] = field(default_factory=list)
    first_min: int = 0
    first_max: int = 0
    times: dict[int, int] = field(default_factory=dict)

    @contextmanager
    def publishing(self, group: list[bytes]) -> Iterator[None]:
        """Until the block is left well, the group may be there or not."""
        self.pending.append(group)
        yield
        self.pending.remove(group)
        self.acknowledge(group)

    def acknowledge(self, group: list[bytes]) -> None:
        self.rows += group
        self.ends.add(len(self.rows))

    def check(self, first: int, found: list[tuple[int, int, bytes]]) -> None:
        end = first + len(found)
        assert self.first_min <= first <= self.first_max, "rows went that no retention removed"
        assert [offset for offset, _, _ in found] == list(range(first, end)), "a gap or a double"
        assert end >= self.durable, f"{self.durable - end} rows are lost that were durable"
        for offset, _, value in found[: max(0, len(self.rows) - first)]:
            assert value == self.rows[offset], f"a wrong row at offset {offset}"
        if end <= len(self.rows):
            assert end in self.ends, "a group is there in part"
        else:
            self._check_pending([value for offset, _, value in found if offset >= len(self.rows)])
        times = [time_us for _, time_us, _ in found]
        assert times == sorted(times), "append times step back"
        for offset, time_us, _ in found:
            assert self.times.get(offset, time_us) == time_us, f"the append time of offset {offset} changed"

    def _check_pending(self, values: list[bytes]) -> None:
        by_first = {group[0]: group for group in self.pending}
        while values:
            group = by_first.pop(values[0], None)
            assert group is not None, "a row that nobody published, or one twice"
            assert values[: len(group)] == group, "an unacknowledged group is there in part"
            values = values[len(group) :]

    def adopt(self, first: int, found: list[tuple[int, int, bytes]]) -> None:
        """What was read after a recovery is what is: it may not go again, and what is not there may not come."""
        end = first + len(found)
        new = [value for offset, _, value in found if offset >= len(self.rows)]
        self.rows = self.rows[:end] + new
        self.ends = {at for at in self.ends if at <= end} | {end}
        self.times = {offset: time_us for offset, time_us, _ in found}
        self.durable = end
        self.pending = []
        self.first_min = self.first_max = first


Model = dict[str, TopicModel]


def read_rows(topic: Topic) -> tuple[int, list[tuple[int, int, bytes]]]:
    """The first offset, and offset, append time and value of every row, read as a user would."""
    first = topic.stats().first_offset
    column = "_payload" if topic.schema is None else "value"
    found: list[tuple[int, int, bytes]] = []
    for batch in topic.read_batches("earliest"):
        offsets = batch.column("_offset").to_pylist()
        times = batch.column("_append_time").cast(pa.int64()).to_pylist()
        found += zip(offsets, times, batch.column(column).to_pylist(), strict=True)
    return first, found


def check_storage(storage: Storage, model: Model) -> None:
    names = set(storage.topics())
    assert names <= {name for name, topic in model.items() if topic.possible}
    for name, expected in model.items():
        if expected.certain:
            assert name in names, f"{name} vanished"
        if name in names:
            expected.check(*read_rows(storage.topic(name, create=False)))


def adopt_storage(storage: Storage, model: Model) -> None:
    names = set(storage.topics())
    for name in list(model):
        if name not in names:
            del model[name]
            continue
        topic = storage.topic(name, create=False)
        model[name].certain = True
        model[name].typed = topic.schema is not None
        model[name].adopt(*read_rows(topic))


def note_beginnings(storage: Storage, model: Model) -> None:
    """After maintenance: a log begins where it says, or, if a removal was stopped, where its record says."""
    for name, expected in model.items():
        topic = storage.topic(name)
        expected.first_min = topic.stats().first_offset
        expected.first_max = max(expected.first_min, storage._catalog.read(topic.log.name).first_offset)


def publish_one_more(storage: Storage, name: str, expected: TopicModel) -> None:
    """Offsets go on without a gap."""
    topic = storage.topic(name, create=False)
    value = b"one more %d" % len(expected.rows)
    with expected.publishing([value]):
        assert publish_values(topic, [value]) == len(expected.rows)
    expected.durable = topic.stats().durable_end


def publish_values(topic: Topic, values: list[bytes], sent: Sent | None = None) -> int:
    if topic.schema is None:
        one = len(values) == 1 and sent is None
        return topic.publish(values[0]) if one else topic.publish_many(values, sent=sent).start
    columns = {"value": pa.array(values, pa.binary())}
    if "more" in topic.schema.names:
        columns["more"] = pa.array(range(len(values)), pa.int64())
    return topic.publish_many(pa.record_batch(columns, schema=topic.schema), sent=sent).start


def opened(disk: FaultyDisk, settings: Settings, clock: FakeClock) -> Storage:
    return open_storage(settings, disk=disk, clock=clock)


def abandon(storage: Storage | None) -> None:
    """End the threads of a storage whose process 'died': nothing is flushed or recorded."""
    if storage is not None:
        storage._context.keeper.close()
        storage._context.pool.close()


def copied(model: Model) -> Model:
    return copy.deepcopy(model)


__all__ = [
    "SCHEMA", "SEGMENT_BYTES", "WIDER_SCHEMA", "FakeClock", "FaultyDisk", "Model", "PowerCut", "TopicModel", "abandon",
    "adopt_storage", "check_storage", "copied", "note_beginnings", "opened", "publish_one_more", "publish_values",
    "read_rows", "settings_of",
]  # fmt: skip
