"""The Spark source driven as Spark drives it, without Spark: where it begins and ends, what it skips, when it waits."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, LongType, StructField, StructType
from tiers import NAME, publish, remove_what_the_table_has

import frazil
from frazil.core.settings import RetentionSettings, Settings
from frazil.pipeline.source.options import SourceOptions, parse_options
from frazil.pipeline.source.source import BatchSourceReader, FrazilSource, StreamSourceReader
from frazil.pipeline.source.stream import Patience
from frazil.testing import FakeClock
from parts.moving import HandMover

COLUMNS = StructType([StructField("offset", LongType()), StructField("value", BinaryType())])


def options_of(settings: Settings, **given: str) -> SourceOptions:
    return parse_options({"data": str(settings.data), **({} if "assign" in given else {"subscribe": NAME}), **given})


def batch(settings: Settings, **given: str) -> list[int]:
    reader = BatchSourceReader(options_of(settings, **given), COLUMNS)
    found = [rows for task in reader.partitions() for rows in reader.read(task)]
    return [offset for rows in found for offset in rows.column("offset").to_pylist()]


class Stream:
    """A batch where the latest offset is another than the last."""

    def __init__(self, settings: Settings, **given: str) -> None:
        self.reader = StreamSourceReader(options_of(settings, **given), COLUMNS)
        self.at: Any = self.reader.initialOffset()

    def batch(self) -> list[int]:
        end = self.reader.latestOffset()
        if end == self.at:
            return []
        tasks = self.reader.partitions(self.at, end)
        self.at = end
        found = [rows for task in tasks for rows in self.reader.read(task)]
        return [offset for rows in found for offset in rows.column("offset").to_pylist()]


def ms(time: datetime) -> str:
    return str(-(-int(time.timestamp() * 1_000_000) // 1_000))


def empty_log(storage: frazil.Storage, topic: frazil.Topic, mover: HandMover) -> None:
    """Retention takes all rows of the log, the last segment too."""
    mover.move(topic)
    remove_what_the_table_has(storage, topic, 5_000)
    storage.set_retention(topic.name, RetentionSettings(age_ms=1))
    storage.maintain()
    assert topic.log.first_offset == 5_000


def test_times_are_found_where_retention_emptied_the_log(
    settings: Settings, storage: frazil.Storage, topic: frazil.Topic, mover: HandMover
) -> None:
    read = list(topic.read(4_500))
    later = next(message for message in read if ms(message.append_time) != ms(read[0].append_time))
    due = [message.offset for message in read if message.append_time.timestamp() * 1_000 >= int(ms(later.append_time))]
    empty_log(storage, topic, mover)
    assert batch(settings, startingTimestamp="1") == list(range(5_000))
    start = batch(settings, startingTimestamp=ms(later.append_time))[0]
    assert 4_500 < start == due[0]
    assert batch(settings, endingTimestamp=ms(later.append_time)) == list(range(start))
    named = f'{{"{NAME}": {{"0": {ms(later.append_time)}}}}}'
    assert batch(settings, startingOffsetsByTimestamp=named) == list(range(start, 5_000))
    assert batch(settings, endingOffsetsByTimestamp=named) == list(range(start))
    assert batch(settings, startingTimestamp="250000000000000") == []
    assert batch(settings, endingTimestamp="250000000000000") == list(range(5_000))


def test_rows_that_were_deleted_are_an_error_or_skipped(
    settings: Settings, topic: frazil.Topic, mover: HandMover
) -> None:
    mover.table(topic).delete("_offset < 5 or _offset = 700 or (_offset >= 1300 and _offset < 2700)")
    gone = {*range(5), 700, *range(1_300, 2_700)}
    with pytest.raises((frazil.TableDamaged, frazil.RowsMissing)):
        batch(settings)
    left = [offset for offset in range(5_000) if offset not in gone]
    assert batch(settings, failOnDataLoss="false") == left
    assert batch(settings, failOnDataLoss="false", minPartitions="7") == left
    assert batch(settings, failOnDataLoss="false", startingTimestamp="1") == left


def test_a_row_that_is_there_twice_is_never_skipped(settings: Settings, topic: frazil.Topic, mover: HandMover) -> None:
    table = mover.table(topic)
    table.append(table.scan(row_filter="_offset >= 700 and _offset < 710").to_arrow())
    table.delete("_offset = 100")
    with pytest.raises(frazil.TableDamaged, match="offset 700 is there more than once"):
        batch(settings, failOnDataLoss="false", startingOffsets="600")


@pytest.mark.parametrize("rows", [3, 10, 20])
def test_a_topic_that_was_made_again_is_read_from_its_beginning(
    settings: Settings, storage: frazil.Storage, rows: int
) -> None:
    publish(storage.topic(NAME), 10)
    stream, strict = Stream(settings, failOnDataLoss="false"), Stream(settings)
    assert stream.batch() == strict.batch() == list(range(10))
    storage.delete_topic(NAME)
    publish(storage.topic(NAME), rows)
    assert stream.batch() == list(range(rows))
    assert stream.batch() == []
    publish(storage.topic(NAME), 1)
    assert stream.batch() == [rows]
    with pytest.raises(frazil.InvalidInput, match="was recreated, and is another log"):
        strict.batch()


def test_only_the_partitions_that_are_assigned(settings: Settings, storage: frazil.Storage) -> None:
    for number in range(3):
        publish(storage.topic(f"/shop/many-part-{number}"), 10 * (number + 1))
    assert len(batch(settings, assign='{"/shop/many": [0, 2]}')) == 40
    with pytest.raises(frazil.TopicNotFound, match="there is no topic /shop/many-part-7"):
        batch(settings, assign='{"/shop/many": [0, 7]}')
    assert len(batch(settings, assign='{"/shop/many": [1, 7]}', failOnDataLoss="false")) == 20


def test_a_batch_waits_for_rows_but_not_for_ever(settings: Settings, storage: frazil.Storage) -> None:
    topic, clock = storage.topic(NAME), FakeClock()
    publish(topic, 3)
    stream = Stream(settings, minOffsetsPerTrigger="10", maxTriggerDelay="1m")
    stream.reader._patience = Patience(stream.reader._options, clock)
    assert stream.batch() == [0, 1, 2], "the first one never waits"
    publish(topic, 9)
    assert stream.batch() == []
    publish(topic, 1)
    assert stream.batch() == list(range(3, 13))
    publish(topic, 1)
    clock.advance(59_999_999)
    assert stream.batch() == []
    clock.advance(1)
    assert stream.batch() == [13]


def test_headers_are_left_out_if_asked(settings: Settings, storage: frazil.Storage) -> None:
    publish(storage.topic(NAME), 1)
    given = {"subscribe": NAME, "data": str(settings.data)}
    plain = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert FrazilSource(given).schema().names == [*plain, "headers"]
    assert FrazilSource({**given, "includeHeaders": "false"}).schema().names == plain


@pytest.mark.parametrize("option", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(settings: Settings, option: str) -> None:
    value = "{}" if option == "endingOffsetsByTimestamp" else "5"
    source = FrazilSource({"subscribe": NAME, "data": str(settings.data), option: value})
    with pytest.raises(frazil.InvalidInput, match=f"option {option}: it is for batches"):
        source.streamReader(COLUMNS)


@pytest.mark.parametrize("option", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger"])
def test_a_batch_has_no_triggers(settings: Settings, option: str) -> None:
    source = FrazilSource({"subscribe": NAME, "data": str(settings.data), option: "5"})
    with pytest.raises(frazil.InvalidInput, match=f"option {option}: it is for streams"):
        source.reader(COLUMNS)
