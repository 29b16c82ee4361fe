"""A topic's own statement: its result is in the table, each range once, and its errors are its own."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from topics import PAYLOADS, STATEMENTS, TIMES, Lake, computed, ordered

import frazil
from frazil.core.settings.lake import WriterSettings
from frazil.lake.tables.token import TRANSFORMED
from frazil.pipeline.move.plan import flush_bytes
from frazil.pipeline.move.topic_rules import TopicsOfSettings
from frazil.pipeline.spark.session import DAEMON
from frazil.testing import FakeClock

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
"""PySpark leaves it to the garbage collector to close the sockets by which it fetched results."""


@pytest.mark.timeout(240)
def test_the_table_holds_what_spark_computes_over_the_rows(tmp_path: Path, session: SparkSession) -> None:
    lake = Lake(tmp_path, session, {name: {"sql": text} for name, text in STATEMENTS.items()})
    for topic in (*STATEMENTS, "/shop/raw"):
        lake.publish(topic, *PAYLOADS, key=b"anna")
    report = lake.move()
    assert {name: topic.error for name, topic in report.topics.items() if topic.error} == {}
    assert report.lag_rows == 0
    for topic, statement in STATEMENTS.items():
        found, expected = lake.rows(topic), computed(session, lake.table("/shop/raw"), statement)
        assert found, topic
        assert set(found[0]) == set(expected[0]), topic
        assert ordered(found, TIMES) == ordered(expected, TIMES), topic
        assert TRANSFORMED in lake.table(topic).properties
    assert TRANSFORMED not in lake.table("/shop/raw").properties
    summary = lake.table("/shop/filtered").current_snapshot().summary.additional_properties
    assert summary[TRANSFORMED] == "true"
    told = {name.rsplit(".", 1)[1]: value for name, value in summary.items() if name.startswith("frazil.")}
    assert (told["start"], told["end"], told["rows"]) == ("0", "100", "34")
    assert "crc" not in told


def test_an_aggregation_is_one_for_each_tick_and_no_range_is_seen_twice(tmp_path: Path, session: SparkSession) -> None:
    sql = "select min(_offset) as low, max(_offset) as high, count(*) as n from topic"
    lake = Lake(tmp_path, session, {"/a/*": {"sql": sql}})
    for _ in range(2):
        lake.publish("/a/b-part-1", b"x", b"y")
        lake.move(ticks=2)
    assert sorted((row["low"], row["high"], row["n"]) for row in lake.rows("/a/b")) == [(0, 1, 2), (2, 3, 2)]


def test_a_result_without_rows_moves_the_token_all_the_same(tmp_path: Path, session: SparkSession) -> None:
    lake = Lake(tmp_path, session, {"/a/b": {"sql": "select * from topic where _offset < 0"}})
    lake.publish("/a/b", b"x", b"y")
    report = lake.move()
    assert (report.commits, report.rows, report.lag_rows) == (1, 0, 0)
    assert lake.rows("/a/b") == []
    assert lake.move().commits == 0


def test_a_new_statement_may_add_columns_and_leave_others_out(tmp_path: Path, session: SparkSession) -> None:
    def lake(sql: str) -> Lake:
        return Lake(tmp_path, session, {"/a/b": {"sql": sql}})

    first = lake("select _offset, cast(1 as int) as n from topic")
    first.publish("/a/b", b"x")
    first.move()
    second = lake("select cast(2 as bigint) as n, named_struct('p', cast(_payload as string)) as s from topic")
    second.publish("/a/b", b"y")
    assert second.move().topics["/a/b"].error is None
    third = lake("select cast(3 as smallint) as n from topic")
    third.publish("/a/b", b"z")
    assert third.move().topics["/a/b"].error is None
    assert sorted(((row["n"], row["_offset"], row["s"]) for row in third.rows("/a/b")), key=repr) == [
        (1, 0, None), (2, None, {"p": "y"}), (3, None, None),
    ]  # fmt: skip
    misfit = lake("select cast(_payload as string) as n from topic")
    misfit.publish("/a/b", b"z")
    error = misfit.move().topics["/a/b"].error or ""
    assert "column n" in error
    assert "long" in error
    assert "string" in error
    assert len(misfit.rows("/a/b")) == 3


def test_the_topic_as_it_was_does_not_follow_into_a_table_of_results(tmp_path: Path, session: SparkSession) -> None:
    transformed = Lake(tmp_path, session, {"/a/b": {"sql": "select _offset from topic"}})
    transformed.publish("/a/b", b"x")
    transformed.move()
    plain = Lake(tmp_path, session, {})
    plain.publish("/a/b", b"y")
    assert "result of a statement" in (plain.move().topics["/a/b"].error or "")
    assert plain.table("/a/b").schema().column_names == ["_offset"]


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("selec 1", "must be a single query"),
        ("select 1 as a from topic; select 2", "';'"),
        ("drop table topic", "must be a single query"),
        ("insert into topic select * from topic", "must be a single query"),
        ("with a as (select 1) insert into x select * from a", "insert"),
        ("select nothing from topic", "`nothing`"),
        ("select * from elsewhere", "`elsewhere`"),
        ("select _offset, _offset from topic", "two columns are called _offset"),
        ("select null as n from topic", "column n is void"),
        ("select interval '1' day as d from topic", "column d is interval day"),
    ],
)
def test_a_statement_that_is_none_is_its_topics_error(
    tmp_path: Path, session: SparkSession, sql: str, why: str
) -> None:
    lake = Lake(tmp_path, session, {"/a/bad": {"sql": sql}})
    lake.publish("/a/bad", b"x")
    lake.publish("/a/good", b"x")
    report = lake.move()
    error = report.topics["/a/bad"].error or ""
    assert error.startswith("topics./a/bad.sql: ")
    assert why in error
    assert "\n" not in error
    assert "line " not in error
    assert report.topics["/a/good"].lag_rows == 0


def test_a_run_time_error_is_its_topics_own_and_heals_with_the_statement(tmp_path: Path, session: SparkSession) -> None:
    numbers = "select cast(cast(_payload as string) as int) as n from topic"
    lake = Lake(tmp_path, session, {"/a/num*": {"sql": numbers}})
    lake.publish("/a/numbers", b"1", b"two", b"3")
    lake.publish("/a/nums", b"4")
    lake.publish("/a/plain", b"x")
    report = lake.move(ticks=2)
    error = report.topics["/a/numbers"].error or ""
    assert error.startswith("topics./a/num*.sql: failed on offsets 0 up to 3: [CAST_INVALID_INPUT]")
    assert "\n" not in error
    assert lake.rows("/a/numbers") == []
    assert lake.rows("/a/nums") == [{"n": 4}]
    assert report.topics["/a/plain"].lag_rows == 0
    mended = Lake(tmp_path, session, {"/a/num*": {"sql": numbers.replace("cast(cast", "try_cast(cast")}})
    mended.move()
    assert sorted(row["n"] or 0 for row in mended.rows("/a/numbers")) == [0, 1, 3]


def test_a_statement_that_failed_rests_before_it_is_tried_again(tmp_path: Path, session: SparkSession) -> None:
    lake = Lake(tmp_path, session, {"/a/b": {"sql": "select nothing from topic", "batch_size": 1}})
    lake.publish("/a/b", b"x")
    lake.clock = FakeClock()
    with lake.mover() as mover:
        first = mover.tick().topics["/a/b"].error
        repaired = Lake(tmp_path, session, {"/a/b": {"sql": "select 1 as a from topic"}}).settings
        mover._topic_of = TopicsOfSettings(repaired, lake.clock).of
        assert mover.tick().topics["/a/b"].error == first
        lake.clock.advance(10_000_000)
        assert mover.tick(all_of_it=True).topics["/a/b"].error is None


def test_the_result_is_partitioned_as_asked_and_no_task_gathers_more_than_its_share(
    tmp_path: Path, session: SparkSession
) -> None:
    topics = {
        "/a/b": {
            "sql": "select _offset, _offset % 4 as shard, repeat(sha2(_payload, 512), 64) as text from topic",
            "partitioning": ["shard", "truncate[100](_offset)"],
            "max_memory_bytes": 4 * 2**20,
        }
    }
    lake = Lake(tmp_path, session, topics)
    lake.publish("/a/b", *[b"x"] * 400)
    assert lake.move().topics["/a/b"].error is None
    table = lake.table("/a/b")
    assert len(lake.rows("/a/b")) == 400
    files = table.inspect.files().to_pylist()
    assert len({tuple(file["partition"].values()) for file in files}) == 16
    share = flush_bytes(WriterSettings(max_memory_bytes=4 * 2**20))
    assert max(file["record_count"] for file in files) * 8_192 < share
    assert table.current_snapshot().summary.additional_properties["total-data-files"] == str(len(files))


def test_topics_cannot_see_one_anothers_rows(tmp_path: Path, session: SparkSession) -> None:
    lake = Lake(tmp_path, session, {"/a/*": {"sql": "select distinct cast(_payload as string) as p from topic"}})
    for name in ("one", "two", "three"):
        lake.publish(f"/a/{name}", *[name.encode()] * 50)
    lake.move()
    assert [lake.rows(f"/a/{name}") for name in ("one", "two", "three")] == [
        [{"p": "one"}], [{"p": "two"}], [{"p": "three"}],
    ]  # fmt: skip
    assert [view.name for view in session.catalog.listTables() if view.isTemporary] == []


def test_a_typed_topic_has_its_own_columns_in_the_view(tmp_path: Path, session: SparkSession) -> None:
    lake = Lake(tmp_path, session, {"/a/b": {"sql": "select _offset, n * 2 as twice from topic where name <> 'b'"}})
    schema = pa.schema([("name", pa.large_string()), ("n", pa.int16())])
    with frazil.open(lake.settings) as storage:
        topic = storage.create_topic("/a/b", schema=schema)
        topic.publish_many(pa.record_batch([["a", "b", "c"], [1, 2, 3]], schema=schema))
    assert lake.move().topics["/a/b"].error is None
    assert sorted(tuple(row.values()) for row in lake.rows("/a/b")) == [(0, 2), (2, 6)]


def test_settings_of_a_topic_hold_for_it_alone(tmp_path: Path, session: SparkSession) -> None:
    topics = {"/a/off": {"enabled": False}, "/a/wrong": {"partitioning": ["nothing"]}, "/a/flat": {"partitioning": []}}
    lake = Lake(tmp_path, session, topics)
    for name in ("off", "wrong", "flat", "usual"):
        lake.publish(f"/a/{name}", b"x")
    report = lake.move()
    assert sorted(report.topics) == ["/a/flat", "/a/usual", "/a/wrong"]
    assert (report.topics["/a/wrong"].error or "").startswith(
        "topics./a/wrong.partitioning: there is no column nothing"
    )
    assert [len(lake.table(f"/a/{name}").spec().fields) for name in ("flat", "usual")] == [0, 1]
    assert [len(lake.rows(f"/a/{name}")) for name in ("flat", "usual")] == [1, 1]


def test_workers_are_forked_from_a_process_that_has_imported_what_tasks_need(session: SparkSession) -> None:
    parent = "open(f'/proc/{__import__(\"os\").getppid()}/cmdline').read()"
    (command,) = session.sparkContext.parallelize([parent], 1).map(eval).collect()
    assert f"-m\0{DAEMON}\0" in command
