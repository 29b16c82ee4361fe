"""One more tier between files and table: an object store will be one. Nothing but the list of tiers knows of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

import pyarrow as pa
import pytest
from tiers import FLOOR, NAME, payload, publish, remove_what_the_table_has

import frazil
from frazil.core.offsets import OffsetRange
from frazil.core.settings import Settings
from frazil.core.tiers import ContiguousBatches, Extent, Gone
from frazil.log.read.history import ColderTiers
from frazil.log.storage import open_storage
from frazil.log.topic_log import TopicLog
from frazil.node.opening import Histories
from parts.moving import HandMover

TABLE_END, SHELF_START, END = 1_500, 1_200, 5_000


class Shelf:
    """Uploaded rows, held in memory."""

    is_in_memory = False

    def __init__(self) -> None:
        self.rows: pa.RecordBatch | None = None
        self.start = 0
        self.read_from: list[int] = []

    def upload(self, topic: frazil.Topic, start: int, end: int) -> None:
        table = pa.Table.from_batches(list(topic.read_batches(start, end=end))).combine_chunks()
        (self.rows,) = table.to_batches()
        self.start = start

    @property
    def end(self) -> int:
        return self.start + (0 if self.rows is None else self.rows.num_rows)

    def may_hold(self, offset: int) -> bool:
        return self.start <= offset < self.end

    def extent(self) -> Extent | None:
        return None if self.rows is None else Extent(self.start, self.end)

    def find(self, time_us: int) -> int | None:
        times = [] if self.rows is None else self.rows.column("_append_time").cast(pa.int64()).to_pylist()
        return next((self.start + at for at, each in enumerate(times) if each >= time_us), None)

    def batches(self, wanted: OffsetRange) -> ContiguousBatches:
        if not self.may_hold(wanted.start):
            raise Gone(wanted.start)
        self.read_from.append(wanted.start)
        return ContiguousBatches(self._slices(wanted), wanted.start)

    def _slices(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        for at in range(wanted.start, min(wanted.end, self.end), 100):
            if not self.may_hold(at):
                raise Gone(at)
            assert self.rows is not None
            yield self.rows.slice(at - self.start, min(100, wanted.end - at))


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def storage(settings: Settings, shelf: Shelf) -> Iterator[frazil.Storage]:
    histories = Histories(settings)

    def colder_of(log: TopicLog) -> ColderTiers:
        return replace(histories(log), between=(shelf,))

    with open_storage(settings, colder_of=colder_of, guards_of=lambda: [FLOOR]) as storage:
        yield storage


@pytest.fixture
def topic(storage: frazil.Storage, mover: HandMover, shelf: Shelf) -> frazil.Topic:
    """The table has the first rows, the shelf those behind and some of the same, the files and the cache the rest."""
    topic = storage.topic(NAME)
    publish(topic, 4_000)
    mover.move(topic, TABLE_END, files=2)
    shelf.upload(topic, SHELF_START, 4_000)
    remove_what_the_table_has(storage, topic, 3_500)
    publish(topic, 1_000)
    assert TABLE_END < topic.log.first_offset <= 3_500
    return topic


def read(topic: frazil.Topic, start: int | str | datetime = "earliest") -> list[int]:
    found = []
    for message in topic.read(start):
        assert message.payload == payload(message.offset)
        found.append(message.offset)
    return found


@pytest.mark.parametrize("start", ["earliest", 0, SHELF_START - 1, SHELF_START, TABLE_END, 3_999, 4_500])
def test_it_is_read_where_it_is_the_hottest_that_has_the_rows(
    topic: frazil.Topic, shelf: Shelf, start: int | str
) -> None:
    first = 0 if start == "earliest" else int(start)
    assert read(topic, start) == list(range(first, END))
    assert shelf.read_from == ([max(first, SHELF_START)] if first < topic.log.first_offset else [])


def test_times_are_found_in_it(topic: frazil.Topic) -> None:
    for offset in (0, SHELF_START, TABLE_END + 7, 3_999, 4_700):
        time = next(topic.read(offset)).append_time
        found = next(topic.read(time))
        assert found.append_time == time
        assert found.offset == 0 or next(topic.read(found.offset - 1)).append_time < time


def test_rows_that_leave_it_while_it_is_read_are_read_from_the_table(
    storage: frazil.Storage, shelf: Shelf, mover: HandMover
) -> None:
    topic = storage.topic(NAME)
    publish(topic, 4_000)
    mover.move(topic, 4_000)
    shelf.upload(topic, SHELF_START, 4_000)
    remove_what_the_table_has(storage, topic, 3_500)
    publish(topic, 1_000)
    reader = topic.read_batches(SHELF_START)
    found = next(reader).column("_offset").to_pylist()
    shelf.rows, shelf.start = None, 0
    found += [offset for batch in reader for offset in batch.column("_offset").to_pylist()]
    assert found == list(range(SHELF_START, END))


def test_without_it_the_rows_that_nothing_else_has_are_missing(topic: frazil.Topic, shelf: Shelf) -> None:
    shelf.rows, shelf.start = None, 0
    with pytest.raises(frazil.RowsMissing, match=str(TABLE_END)):
        read(topic)
