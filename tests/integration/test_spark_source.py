"""Topics read by Spark, `format("frazil")`: the rows of `topic.read`, each once, wherever they are."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import frazil
from frazil.core.settings import Settings
from frazil.doors.flight.door import flight_door
from frazil.log.folder.ownership import published_addresses
from frazil.testing import FakeClock
from parts.moving import Floor, HandMover, open_guarded

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.timeout(180),
]

TOPIC = "/shop/orders"
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "spark.md"


def small(folder: Path, **wal: Any) -> Settings:
    return Settings(data=folder, wal=frazil.WalSettings(max_file_size=64 * 1024, **wal))


def read(session: SparkSession, folder: Path, **options: Any) -> DataFrame:
    given = {"subscribe": TOPIC, "data": str(folder), **options}
    return session.read.format("frazil").options(**given).load()


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


def published(topic: frazil.Topic, count: int, size: int = 100) -> None:
    start = topic.stats().end
    for low in range(start, start + count, 50):
        topic.publish_many(
            [
                frazil.Outgoing(
                    f"{number}".encode().ljust(size),
                    key=None if number % 3 else f"k{number}".encode(),
                    attributes={"n": str(number), "m": "x"} if number % 2 else None,
                )
                for number in range(low, min(low + 50, start + count))
            ]
        )


def as_spark_rows(topic: frazil.Topic, name: str = TOPIC, partition: int = 0) -> list[tuple[Any, ...]]:
    return [
        (
            message.key,
            message.payload,
            name,
            partition,
            message.offset,
            message.append_time.timestamp(),
            sorted((key, value.encode()) for key, value in message.attributes.items()),
        )
        for message in topic.read()
    ]


def found_rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    return sorted(
        (
            (
                None if row.key is None else bytes(row.key),
                bytes(row.value),
                row.topic,
                row.partition,
                row.offset,
                row.timestamp.timestamp(),
                sorted((header.key, bytes(header.value)) for header in row.headers or ()),
            )
            for row in frame.collect()
        ),
        key=lambda row: (row[3], row[4]),
    )


def test_a_batch_has_the_rows_of_the_topic_across_table_and_log(tmp_path: Path, session: SparkSession) -> None:
    settings, floor = small(tmp_path), Floor()
    with open_guarded(settings, floor) as storage:
        topic, mover = storage.topic(TOPIC), HandMover(settings)
        published(topic, 1_500)
        assert found_rows(read(session, tmp_path)) == as_spark_rows(topic)  # all in the log
        mover.move(topic, 1_000, files=4)
        assert found_rows(read(session, tmp_path)) == as_spark_rows(topic)  # some in both
        floor.ends[topic.log.log_id] = 1_000
        storage.set_retention(TOPIC, frazil.RetentionSettings(bytes=1))
        storage.maintain()
        assert 0 < topic.log.first_offset <= 1_000
        expected = as_spark_rows(topic)
        assert [row[4] for row in expected] == list(range(1_500))
        assert found_rows(read(session, tmp_path)) == expected  # some only in the table
        mover.move(topic)
        assert found_rows(read(session, tmp_path)) == expected  # all in the table
    assert found_rows(read(session, tmp_path)) == expected  # and nobody owns the folder


def test_starting_and_ending_offsets(tmp_path: Path, session: SparkSession) -> None:
    settings = small(tmp_path)
    with frazil.open(settings) as storage:
        topic = storage.topic(TOPIC)
        published(topic, 300)
        HandMover(settings).move(topic, 200, files=2)
    cases: list[tuple[dict[str, str], range]] = [
        ({}, range(300)),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, range(300)),
        ({"startingOffsets": "latest"}, range(0)),
        ({"startingOffsets": "150"}, range(150, 300)),
        ({"startingOffsets": "50", "endingOffsets": "60"}, range(50, 60)),
        ({"startingOffsets": json.dumps({TOPIC: {"0": 199}}), "endingOffsets": "201"}, range(199, 201)),
        ({"startingOffsets": json.dumps({TOPIC: {"0": -2}}), "endingOffsets": "7"}, range(7)),
        ({"STARTINGOFFSETS": "290", "endingOffsets": json.dumps({TOPIC: {"0": -1}})}, range(290, 300)),
    ]
    for options, expected in cases:
        assert offsets(read(session, tmp_path, **options)) == list(expected), options


def test_a_starting_timestamp_names_one_offset_in_table_and_log(tmp_path: Path, session: SparkSession) -> None:
    settings, floor, clock = small(tmp_path), Floor(), FakeClock()
    times = []
    with open_guarded(settings, floor, clock=clock) as storage:
        topic = storage.topic(TOPIC)
        for _ in range(12):
            clock.advance(10_000_000)
            times.append(clock.now_us() // 1_000)
            topic.publish_many([b"x" * 2_000] * 50)
        HandMover(settings).move(topic, 300)
        floor.ends[topic.log.log_id] = 300
        storage.set_retention(TOPIC, frazil.RetentionSettings(bytes=1))
        storage.maintain()
        assert topic.log.first_offset > 0
    for number in (0, 3, 7, 11):  # two in the table, two in the log
        since_ms = times[number]
        found = offsets(read(session, tmp_path, startingTimestamp=str(since_ms)))
        assert found == list(range(number * 50, 600)), number
        assert offsets(read(session, tmp_path, startingTimestamp=str(since_ms - 5_000))) == found
    assert offsets(read(session, tmp_path, startingTimestamp=str(times[-1] + 1))) == []


def test_partitions_of_a_topic_are_read_by_its_base_name(tmp_path: Path, session: SparkSession) -> None:
    settings = small(tmp_path)
    expected: list[tuple[Any, ...]] = []
    with frazil.open(settings) as storage:
        mover = HandMover(settings)
        for number in range(3):
            topic = storage.topic(f"{TOPIC}-part-{number}")
            published(topic, 100 + number)
            if number:
                mover.move(topic, 60)
            expected += as_spark_rows(topic, partition=number)
        published(storage.topic("/shop/others"), 5)
    assert found_rows(read(session, tmp_path)) == expected
    one = read(session, tmp_path, subscribe=f"{TOPIC}-part-2")
    assert found_rows(one) == expected[-102:]
    chosen = json.dumps({TOPIC: {"0": 90, "1": -1}})
    frame = read(session, tmp_path, startingOffsets=chosen)
    assert {row.partition: row["count"] for row in frame.groupBy("partition").count().collect()} == {0: 10, 2: 102}
    both = read(session, tmp_path, subscribe=f"{TOPIC}, /shop/others")
    assert both.count() == 308
    pattern = session.read.format("frazil").option("data", str(tmp_path)).option("subscribePattern", "/shop/.*")
    assert pattern.load().count() == 308


TYPED = pa.schema(
    [
        pa.field("user", pa.string()),
        pa.field("amount", pa.decimal128(10, 2)),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("at", pa.timestamp("us")),
        pa.field("offset", pa.int32()),
    ]
)


def test_a_typed_topic_has_its_own_columns_and_the_place_of_each_row(tmp_path: Path, session: SparkSession) -> None:
    settings = small(tmp_path)
    with frazil.open(settings) as storage:
        topic = storage.topic("/shop/typed", schema=TYPED)
        rows = [
            {"user": f"u{n}", "amount": None, "tags": ["a"] * (n % 3), "at": None, "offset": -n} for n in range(200)
        ]
        topic.publish_many(pa.RecordBatch.from_pylist(rows, TYPED))
        HandMover(settings).move(topic, 120)
        frame = read(session, tmp_path, subscribe="/shop/typed")
        assert frame.columns == [*TYPED.names, "topic", "partition", "_offset", "timestamp"]
        assert dict(frame.dtypes)["at"] == "timestamp_ntz"
        found = sorted(frame.collect(), key=lambda row: row["_offset"])
        assert [(row.user, list(row.tags), row.offset, row["_offset"]) for row in found] == [
            (f"u{n}", ["a"] * (n % 3), -n, n) for n in range(200)
        ]
        published(storage.topic(TOPIC), 1)
    with pytest.raises(Exception, match="/shop/typed has other columns than /shop/orders"):
        read(session, tmp_path, subscribe=f"{TOPIC},/shop/typed")


def test_names_that_differ_only_in_case_are_told_apart_or_refused(tmp_path: Path, session: SparkSession) -> None:
    settings = small(tmp_path)
    clashing = pa.schema([("Offset", pa.int32()), ("Timestamp", pa.string()), ("KEY", pa.string())])
    twice = pa.schema([("user", pa.string()), ("User", pa.string())])
    with frazil.open(settings) as storage:
        topic = storage.topic("/shop/clashing", schema=clashing)
        topic.publish_many(pa.RecordBatch.from_pylist([{"Offset": 7, "Timestamp": "t", "KEY": "k"}], clashing))
        storage.topic("/shop/twice", schema=twice).publish_many(
            pa.RecordBatch.from_pydict({"user": ["a"], "User": ["b"]}, twice)
        )
    frame = read(session, tmp_path, subscribe="/shop/clashing")
    (row,) = frame.select("offset", "_offset", "timestamp", "key", "topic").collect()
    assert tuple(row) == (7, 0, "t", "k", "/shop/clashing")
    with pytest.raises(Exception, match="columns 'user' and 'User', which are one name to Spark"):
        read(session, tmp_path, subscribe="/shop/twice")
    source = session.read.format("frazil").option("subscribe", "/shop/twice").option("data", str(tmp_path))
    assert [tuple(each) for each in source.schema("User string, offset long").load().collect()] == [("b", 0)]


def test_a_topic_that_is_not_there_is_an_error_or_has_no_rows(tmp_path: Path, session: SparkSession) -> None:
    with frazil.open(tmp_path) as storage:
        published(storage.topic(TOPIC), 10)
    with pytest.raises(Exception, match=r"TopicNotFound.*there is no topic /shop/none"):
        read(session, tmp_path, subscribe=f"{TOPIC},/shop/none")
    assert offsets(read(session, tmp_path, subscribe=f"{TOPIC},/shop/none", failOnDataLoss="false")) == list(range(10))
    empty = read(session, tmp_path, subscribe="/shop/none", failOnDataLoss="false")
    assert found_rows(empty) == []


def test_a_schema_with_fewer_columns_reads_no_others(tmp_path: Path, session: SparkSession) -> None:
    settings = small(tmp_path)
    with frazil.open(settings) as storage:
        topic = storage.topic(TOPIC)
        published(topic, 100)
        HandMover(settings).move(topic, 50)
    source = session.read.format("frazil").option("subscribe", TOPIC).option("data", str(tmp_path))
    rows = source.schema("offset long, value binary").load().collect()
    assert sorted((row.offset, bytes(row.value).strip()) for row in rows) == [(n, b"%d" % n) for n in range(100)]
    with pytest.raises(Exception, match="has no column 'prize'; it has key, value"):
        source.schema("prize int").load().collect()


def test_tasks_follow_the_files_and_min_partitions(tmp_path: Path, session: SparkSession) -> None:
    settings = small(tmp_path)
    with frazil.open(settings) as storage:
        topic = storage.topic(TOPIC)
        published(topic, 400)
        HandMover(settings).move(topic, 300, files=3)
    assert read(session, tmp_path).rdd.getNumPartitions() == 2  # one of the table, one of the log: both are small
    many = read(session, tmp_path, minPartitions="9")
    assert many.rdd.getNumPartitions() >= 9
    assert offsets(many) == list(range(400))


def test_other_names_of_kafka(tmp_path: Path, session: SparkSession) -> None:
    settings = small(tmp_path)
    with frazil.open(settings) as storage:
        for number in range(2):
            topic = storage.topic(f"/shop/many-part-{number}")
            published(topic, 300)
            HandMover(settings).move(topic, 200, files=2)
        HandMover(settings).table(topic).delete("_offset = 100 and _topic_partition = 1")
    given = {"assign": '{"/shop/many": [1]}', "failOnDataLoss": "false", "includeHeaders": "false"}
    source = session.read.format("frazil").options(data=str(tmp_path), **given)
    frame = source.load()
    assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert offsets(frame) == [offset for offset in range(300) if offset != 100]
    assert {(row.partition, row.timestampType) for row in frame.collect()} == {(1, 1)}
    assert offsets(source.option("startingTimestamp", "1").option("endingTimestamp", "1").load()) == []
    strict = session.read.format("frazil").options(data=str(tmp_path), assign='{"/shop/many": [1]}').load()
    with pytest.raises(Exception, match=r"offsets 100 up to 101 are missing"):
        strict.collect()


def test_a_stream_waits_for_rows_only_after_its_first_batch(tmp_path: Path, session: SparkSession) -> None:
    settings, sink = small(tmp_path / "data"), tmp_path / "sink"
    with frazil.open(settings) as storage:
        published(storage.topic(TOPIC), 10)
        assert run_stream(session, tmp_path / "data", sink, minOffsetsPerTrigger="100", maxTriggerDelay="1h") == [10]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffsets": "soon"}, "option startingOffsets: 'soon' is neither"),
        ({"endingOffsets": "11"}, "has offsets 0 up to 10, not 11"),
    ],
)
def test_a_wrong_option_is_named(tmp_path: Path, session: SparkSession, options: dict[str, str], words: str) -> None:
    """Once where Spark asks for the columns and once where it plans; `test_source_refusals` has them all."""
    with frazil.open(tmp_path) as storage:
        published(storage.topic(TOPIC), 10)
    with pytest.raises(Exception, match=words):
        read(session, tmp_path, **options).collect()


def test_rows_that_are_nowhere_are_an_error_or_skipped(tmp_path: Path, session: SparkSession) -> None:
    settings = small(tmp_path)
    with frazil.open(settings) as storage:
        topic = storage.topic(TOPIC)
        published(topic, 1_000)
        storage.set_retention(TOPIC, frazil.RetentionSettings(bytes=1))
        storage.maintain()
        first = topic.log.first_offset
        assert first > 5
    assert offsets(read(session, tmp_path)) == list(range(first, 1_000))
    with pytest.raises(Exception, match=f"does not hold offsets 5 up to {first} of /shop/orders"):
        read(session, tmp_path, startingOffsets="5").collect()
    kept = read(session, tmp_path, startingOffsets="5", failOnDataLoss="false")
    assert offsets(kept) == list(range(first, 1_000))


def test_what_is_moved_and_removed_after_planning_is_read_from_the_table(tmp_path: Path, session: SparkSession) -> None:
    settings, floor = small(tmp_path), Floor()
    with open_guarded(settings, floor) as storage:
        topic, mover = storage.topic(TOPIC), HandMover(settings)
        published(topic, 1_000)
        mover.move(topic, 100)
        frame = read(session, tmp_path)
        assert frame.rdd.getNumPartitions() == 2  # planned: 900 rows of the log
        mover.move(topic, 700)
        floor.ends[topic.log.log_id] = 700
        storage.set_retention(TOPIC, frazil.RetentionSettings(bytes=1))
        storage.maintain()
        assert topic.log.first_offset > 100
        assert found_rows(frame) == as_spark_rows(topic)


def test_tasks_that_see_no_files_fetch_rows_from_the_owner(tmp_path: Path, session: SparkSession) -> None:
    """The config names another log folder: what is not in the table comes through the owner's door."""
    settings = small(tmp_path / "owner")
    config = tmp_path / "reader.yaml"
    config.write_text(json.dumps({"data": str(settings.data), "wal": {"base_path": str(tmp_path / "none")}}))
    with frazil.open(settings) as storage, flight_door(storage, settings.flight.model_copy(update={"port": 0})) as door:
        topic = storage.topic(TOPIC)
        published(topic, 200)
        HandMover(settings).move(topic, 100)
        options = {"subscribe": TOPIC, "config": str(config), "owner": door.address}
        assert found_rows(session.read.format("frazil").options(**options).load()) == as_spark_rows(topic)
        with published_addresses(settings, {"flight": door.address}):
            assert found_rows(read(session, settings.data or tmp_path)) == as_spark_rows(topic)
    with pytest.raises(Exception, match="does not answer"):
        session.read.format("frazil").options(**options).load()


# --- streams


def run_stream(session: SparkSession, folder: Path, sink: Path, **options: Any) -> list[int]:
    """Runs until nothing is left; returns the rows of each batch of this run."""
    given = {"subscribe": TOPIC, "data": str(folder), **options}
    query = (
        session.readStream.format("frazil").options(**given).load()
        .selectExpr("topic", "partition", "offset", "cast(value as string) as value")
        .writeStream.format("parquet").option("path", str(sink / "rows")).option("checkpointLocation", str(sink / "at"))
        .start()
    )  # fmt: skip
    try:
        query.processAllAvailable()
        return [batch["numInputRows"] for batch in query.recentProgress if batch["numInputRows"]]
    finally:
        query.stop()


def sunk(session: SparkSession, sink: Path) -> list[tuple[str, int, int]]:
    return sorted((row.topic, row.partition, row.offset) for row in session.read.parquet(str(sink / "rows")).collect())


def test_a_stream_goes_on_from_its_checkpoint_in_batches_of_the_size_asked_for(
    tmp_path: Path, session: SparkSession
) -> None:
    settings, sink = small(tmp_path / "data"), tmp_path / "sink"
    with frazil.open(settings) as storage:
        topic, mover = storage.topic(TOPIC), HandMover(settings)
        published(topic, 250)
        mover.move(topic, 120)
        assert run_stream(session, tmp_path / "data", sink, maxOffsetsPerTrigger="100") == [100, 100, 50]
        published(topic, 130)
        mover.move(topic, 300)
        assert run_stream(session, tmp_path / "data", sink, maxOffsetsPerTrigger="100") == [100, 30]
        assert run_stream(session, tmp_path / "data", sink, maxOffsetsPerTrigger="100") == []
        assert sunk(session, sink) == [(TOPIC, 0, offset) for offset in range(380)]


def test_available_now_ends_and_goes_on_from_its_checkpoint(tmp_path: Path, session: SparkSession) -> None:
    settings, sink = small(tmp_path / "data"), tmp_path / "sink"

    def run(**options: str) -> None:
        given = {"subscribe": TOPIC, "data": str(tmp_path / "data"), **options}
        rows = session.readStream.format("frazil").options(**given).load().select("topic", "partition", "offset")
        query = (
            rows.writeStream.trigger(availableNow=True)
            .format("parquet").option("path", str(sink / "rows")).option("checkpointLocation", str(sink / "at"))
            .start()
        )  # fmt: skip
        assert query.awaitTermination(120)

    with frazil.open(settings) as storage:
        topic = storage.topic(TOPIC)
        published(topic, 250)
        run()
        assert sunk(session, sink) == [(TOPIC, 0, offset) for offset in range(250)]
        published(topic, 130)
        for end in (350, 380, 380):
            run(maxOffsetsPerTrigger="100")
            assert sunk(session, sink) == [(TOPIC, 0, offset) for offset in range(end)]


def test_a_stream_from_the_latest_picks_up_topics_that_are_made_later(tmp_path: Path, session: SparkSession) -> None:
    settings, sink = small(tmp_path / "data"), tmp_path / "sink"
    options = {"startingOffsets": "latest", "subscribePattern": "/shop/.*"}
    query = (
        session.readStream.format("frazil").options(data=str(tmp_path / "data"), **options).load()
        .select("topic", "partition", "offset")
        .writeStream.format("parquet").option("path", str(sink / "rows")).option("checkpointLocation", str(sink / "at"))
    )  # fmt: skip
    with frazil.open(settings) as storage:
        published(storage.topic(TOPIC), 10)
        running = query.start()
        try:
            running.processAllAvailable()
            published(storage.topic(TOPIC), 5)
            published(storage.topic("/shop/new-part-1"), 3)
            running.processAllAvailable()
        finally:
            running.stop()
    expected = [("/shop/new", 1, offset) for offset in range(3)] + [(TOPIC, 0, offset) for offset in range(10, 15)]
    assert sunk(session, sink) == expected


def test_a_stream_refuses_a_topic_that_was_made_again(tmp_path: Path, session: SparkSession) -> None:
    settings, sink = small(tmp_path / "data"), tmp_path / "sink"
    with frazil.open(settings) as storage:
        published(storage.topic(TOPIC), 10)
        assert run_stream(session, tmp_path / "data", sink) == [10]
        storage.delete_topic(TOPIC)
        published(storage.topic(TOPIC), 20)
        with pytest.raises(Exception, match="was recreated, and is another log"):
            run_stream(session, tmp_path / "data", sink)
        assert run_stream(session, tmp_path / "data", sink, failOnDataLoss="false") == [20]
    with pytest.raises(Exception, match="option endingOffsets: it is for batches"):
        run_stream(session, tmp_path / "data", tmp_path / "other", endingOffsets="5")


def test_the_first_batch_of_a_stream_is_repeated_from_where_it_began(tmp_path: Path, session: SparkSession) -> None:
    """Its end is in the checkpoint, and `latest` is no longer what it was: the offset itself says where it began."""
    settings, sink = small(tmp_path / "data"), tmp_path / "sink"
    with frazil.open(settings) as storage:
        topic = storage.topic(TOPIC)
        published(topic, 10)
        assert run_stream(session, tmp_path / "data", sink, startingOffsets="8") == [2]
        published(topic, 10)
        for left in itertools.chain((sink / "at" / "commits").glob("*"), (sink / "at" / "commits").glob(".*")):
            left.unlink()
        again = tmp_path / "again"
        again.mkdir()
        (sink / "at").rename(again / "at")
        assert run_stream(session, tmp_path / "data", again, startingOffsets="latest") == [2, 10]
        assert sunk(session, again) == [(TOPIC, 0, offset) for offset in range(8, 20)]


def test_the_code_of_the_guide_runs(tmp_path: Path, session: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """All blocks as one program, in the session of these tests; only its folders are put elsewhere."""
    blocks = re.findall(r"^```py(?:thon)?\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 3
    program = re.sub(r'"(frazil-data|orders-\w+)"', lambda found: repr(str(tmp_path / found[1])), "\n".join(blocks))
    names: dict[str, Any] = {}
    exec(compile(program, str(GUIDE), "exec"), names)
    assert names["spark"] is session
    assert capsys.readouterr().out.count("rye bread") == 1
    assert offsets(names["orders"]) == offsets(names["few"]) == [0, 1, 2]
    assert offsets(session.read.parquet(str(tmp_path / "orders-parquet"))) == [0, 1, 2]
