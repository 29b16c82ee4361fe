"""SQL over a topic: table and log as one, exactly, whatever the table's files are like."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pytest
from tiers import publish, remove_what_the_table_has, rewrite, rows_of

import frazil
from frazil.core.settings import Settings
from frazil.lake.tables.accept import accept
from frazil.node.query.session import AsOf, SqlSession
from frazil.node.tiers.logs import FileView
from parts.moving import HandMover
from parts.table_rewrites import expire, remove_unneeded_files

Ask = Callable[..., list[tuple[object, ...]]]


@pytest.fixture
def ask(settings: Settings) -> Ask:
    def run(query: str, as_of: AsOf | None = None) -> list[tuple[object, ...]]:
        with SqlSession(settings, FileView(settings), as_of) as session:
            return [tuple(row.values()) for batch in session.run(query).batches for row in batch.to_pylist()]

    return run


def test_table_and_log_are_one(ask: Ask, topic: frazil.Topic) -> None:
    assert ask("select count(*), count(distinct _offset), min(_offset), max(_offset) from shop.orders") == [
        (5_000, 5_000, 0, 4_999)
    ]
    assert ask("select decode(_payload)[:5] from shop.orders where _offset = 4999") == [("4999:",)]


def test_a_message_is_seen_at_once(ask: Ask, storage: frazil.Storage) -> None:
    topic = storage.topic("/default/now")
    topic.publish("tea")
    assert ask("select decode(_payload) from now") == [("tea",)]
    assert ask('select decode(_payload) from "default".now') == [("tea",)]
    topic.publish("more")
    assert ask("select count(*) from now a, now b") == [(4,)]


def test_while_rows_are_moved_and_removed(
    ask: Ask, storage: frazil.Storage, topic: frazil.Topic, mover: HandMover
) -> None:
    for _ in range(3):
        publish(topic, 300)
        assert ask("select count(*), max(_offset) + 1 from shop.orders") == [(topic.stats().end,) * 2]
        remove_what_the_table_has(storage, topic, mover.move(topic))
        assert ask("select count(*), max(_offset) + 1 from shop.orders") == [(topic.stats().end,) * 2]


def test_files_that_do_not_speak_for_themselves(ask: Ask, topic: frazil.Topic, mover: HandMover) -> None:
    table = mover.table(topic)
    with table.update_schema() as update:
        update.rename_column("_producer", "source")
    rewrite(table, rows_of(table, [("_payload", "ascending")]), [77])
    with table.update_schema() as update:
        update.rename_column("source", "_producer")
    assert ask("select count(*), count(distinct _offset) from shop.orders") == [(5_000, 5_000)]


def test_partitions_in_one_file_are_counted_and_then_queried(
    ask: Ask, storage: frazil.Storage, mover: HandMover
) -> None:
    """As a compaction leaves them: statistics can't tell, so the rows are looked at before the query runs."""
    for number in range(2):
        topic = storage.topic(f"/shop/many-part-{number}")
        publish(topic, 100)
        mover.move(topic)
    table = mover.table(topic)
    rewrite(table, rows_of(table, [("_topic_partition", "ascending"), ("_offset", "ascending")]), [])
    assert ask("select _topic_partition, count(*) from shop.many group by 1 order by 1") == [(0, 100), (1, 100)]


def test_files_that_were_compacted_and_removed_under_a_query_are_no_damage(
    ask: Ask, settings: Settings, topic: frazil.Topic, mover: HandMover, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the table and the query. Asked again, it has all rows."""
    query = "select count(*), count(distinct _offset) from shop.orders"
    with SqlSession(settings, FileView(settings)) as session:
        lock = session._lock

        def compact_first() -> None:
            lock()
            rewrite(mover.table(topic), rows_of(mover.table(topic), [("_offset", "ascending")]), [])
            expire(mover.table(topic), 1)
            assert remove_unneeded_files(mover.table(topic)) > 0

        monkeypatch.setattr(session, "_lock", compact_first)
        with pytest.raises(frazil.TryLater, match="run it again"):
            list(session.run(query).batches)
    assert ask(query) == [(5_000, 5_000)]


def test_the_past(ask: Ask, topic: frazil.Topic, mover: HandMover) -> None:
    before = mover.table(topic).current_snapshot()
    assert before is not None
    mover.move(topic)
    assert ask("select count(*) from shop.orders", AsOf(snapshot_id=before.snapshot_id)) == [(4_000,)]
    time = datetime.fromtimestamp(before.timestamp_ms / 1_000, timezone.utc)
    assert ask("select count(*) from shop.orders", AsOf(at=time)) == [(4_000,)]
    with pytest.raises(frazil.InvalidInput, match="has no snapshot 17; the newest are"):
        ask("select 1 from shop.orders", AsOf(snapshot_id=17))
    with pytest.raises(frazil.InvalidInput, match="has no snapshot that old"):
        ask("select 1 from shop.orders", AsOf(at=datetime(2000, 1, 1, tzinfo=timezone.utc)))


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("select * from shop.nothing", r"no topic or table shop\.nothing"),
        ("selec", "syntax error"),
        ("drop table shop.orders", "give one SELECT"),
        ("insert into shop.orders values (1)", "give one SELECT"),
        ("select 1; select 2", "give one SELECT"),
        ("select nope from shop.orders", "nope"),
        ("select decode(_payload)::int from shop.orders", "Could not convert"),
    ],
)
def test_a_wrong_query_is_told_in_one_line(ask: Ask, topic: frazil.Topic, query: str, says: str) -> None:
    with pytest.raises(frazil.InvalidInput, match=says) as caught:
        ask(query)
    assert "\n" not in caught.value.message


def test_rows_that_are_nowhere_are_not_left_out_in_silence(
    ask: Ask, storage: frazil.Storage, topic: frazil.Topic
) -> None:
    remove_what_the_table_has(storage, topic, 4_600)  # more than the table has
    with pytest.raises(frazil.RowsMissing):
        ask("select count(*) from shop.orders")


def test_what_is_all_in_the_table_is_counted_from_the_files_alone(
    ask: Ask, topic: frazil.Topic, mover: HandMover
) -> None:
    explain = "explain select count(*) from shop.orders"
    assert "union" in str(ask(explain)).lower()
    mover.move(topic)
    assert "union" not in str(ask(explain)).lower()
    assert ask("select count(*) from shop.orders") == [(5_000,)]


def test_a_column_that_only_the_topic_has_can_be_asked_for(ask: Ask, storage: frazil.Storage, mover: HandMover) -> None:
    own = pa.schema([("id", pa.int64())])
    topic = storage.topic("/shop/typed", schema=own)
    topic.publish_many(pa.record_batch({"id": [1, 2]}, schema=own))
    mover.move(topic)
    storage.change_schema(topic.name, own.append(pa.field("note", pa.string())))
    assert ask("select id, note from shop.typed order by id") == [(1, None), (2, None)]


# --- columns by their numbers

PRICES = pa.schema(
    [("unit-price", pa.int64()), ("Unit-Price", pa.int64()), ("inner", pa.struct([("a b", pa.int64())]))]
)


def priced(storage: frazil.Storage, *prices: int) -> frazil.Topic:
    topic = storage.topic("/shop/prices", schema=PRICES)
    rows = [{"unit-price": price, "Unit-Price": -price, "inner": {"a b": price}} for price in prices]
    topic.publish_many(pa.RecordBatch.from_pylist(rows, schema=PRICES))
    return topic


def test_columns_whose_names_parquet_respells(ask: Ask, storage: frazil.Storage, mover: HandMover) -> None:
    query = """select sum("unit-price")::int, sum("Unit-Price_1")::int, sum("inner"."a b")::int from shop.prices"""
    topic = priced(storage, 1, 2)
    assert ask(query) == [(3, -3, 3)]
    mover.move(topic)
    assert ask(query) == [(3, -3, 3)]
    priced(storage, 4)
    assert ask(query) == [(7, -7, 7)]


def test_columns_that_another_engine_added_renamed_and_dropped(ask: Ask, topic: frazil.Topic, mover: HandMover) -> None:
    table = mover.table(topic)
    with table.update_schema() as update:
        update.add_column("one", table.schema().find_type("_offset"))
        update.add_column("two", table.schema().find_type("_offset"))
    rows = table.scan().to_arrow()
    numbers = pa.array(range(rows.num_rows), pa.int64())
    for name, column in (("one", numbers), ("two", pa.compute.negate(numbers))):
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    table.overwrite(rows)
    for old, new in (("one", "three"), ("two", "one"), ("three", "two")):
        with mover.table(topic).update_schema() as update:
            update.rename_column(old, new)
    assert ask("select max(one), min(two), count(one) from shop.orders") == [(0, 0, 4_000)]
    with mover.table(topic).update_schema() as update:
        update.delete_column("one")
        update.rename_column("two", "one")
    assert ask("select max(one), count(one) from shop.orders") == [(3_999, 4_000)]


# --- what readers refuse


def test_rows_that_were_deleted_are_refused_until_that_is_accepted(
    ask: Ask, topic: frazil.Topic, mover: HandMover
) -> None:
    mover.table(topic).delete("_offset = 700")
    with pytest.raises(frazil.TableDamaged, match="at offset 700 of /shop/orders: offsets 700 up to 701 are missing"):
        ask("select count(*) from shop.orders")
    accept(mover.catalog, mover.name(topic), topic.log.log_id, 0, "move")
    assert ask("select count(*), count(distinct _offset) from shop.orders") == [(4_999, 4_999)]


def test_an_accepted_row_that_a_rollback_brings_back_does_not_count(
    ask: Ask, topic: frazil.Topic, mover: HandMover
) -> None:
    before = mover.table(topic).current_snapshot()
    assert before is not None
    mover.table(topic).delete("_offset = 700")
    accept(mover.catalog, mover.name(topic), topic.log.log_id, 0, "move")
    mover.table(topic).manage_snapshots().rollback_to_snapshot(before.snapshot_id).commit()
    assert ask("select count(*), count(distinct _offset) from shop.orders") == [(4_999, 4_999)]


def test_all_rows_of_a_file_that_were_deleted_are_refused(ask: Ask, topic: frazil.Topic, mover: HandMover) -> None:
    mover.table(topic).delete("_offset < 3000")
    with pytest.raises(frazil.TableDamaged, match="offset 0 of /shop/orders: offsets 0 up to 3000 are missing"):
        ask("select count(*) from shop.orders")


def test_a_double_is_refused(ask: Ask, topic: frazil.Topic, mover: HandMover) -> None:
    table = mover.table(topic)
    table.append(table.scan(row_filter="_offset >= 700 and _offset < 710").to_arrow())
    with pytest.raises(frazil.TableDamaged, match="offset 700 is there more than once"):
        ask("select count(*) from shop.orders")


def test_rows_of_no_log_and_rows_behind_the_token_do_not_count(ask: Ask, topic: frazil.Topic, mover: HandMover) -> None:
    table = mover.table(topic)
    rows = table.scan(row_filter="_offset >= 3990").to_arrow()
    at = rows.schema.get_field_index("_topic_partition")
    table.append(rows.set_column(at, rows.schema.field(at), pa.array([7] * 10, pa.int32())))
    at = rows.schema.get_field_index("_offset")
    table.append(rows.set_column(at, rows.schema.field(at), pa.array(range(4_000, 4_010), pa.int64())))
    assert ask("select count(*), count(distinct _offset), max(_topic_partition) from shop.orders") == [
        (5_000, 5_000, 0)
    ]


def test_a_topic_that_was_made_again_has_its_own_rows(ask: Ask, storage: frazil.Storage, topic: frazil.Topic) -> None:
    storage.delete_topic(topic.name)
    storage.topic(topic.name).publish("new")
    assert ask("select _offset, decode(_payload) from shop.orders") == [(0, "new")]


def test_a_topic_that_was_deleted_has_what_its_table_has(
    ask: Ask, storage: frazil.Storage, topic: frazil.Topic
) -> None:
    storage.delete_topic(topic.name)
    assert ask("select count(*) from shop.orders") == [(4_000,)]


def test_results_of_a_statement_are_not_mixed_with_rows(ask: Ask, topic: frazil.Topic, mover: HandMover) -> None:
    with mover.table(topic).transaction() as change:
        change.set_properties({"frazil.transformed": "true"})
    assert ask("select count(*) from shop.orders") == [(4_000,)]


@pytest.mark.parametrize("whole", [True, False])
def test_a_file_that_is_gone_is_named(ask: Ask, topic: frazil.Topic, mover: HandMover, whole: bool) -> None:
    table = mover.table(topic)
    if not whole:  # read by rows, not by DuckDB
        with table.transaction() as change:
            change.set_properties({"schema.name-mapping.default": "[]"})
    path = Path(next(iter(table.scan().plan_files())).file.file_path.removeprefix("file://"))
    path.unlink()
    with pytest.raises(frazil.TableDamaged, match=path.name):
        ask("select max(_payload) from shop.orders")


# --- partitions


def test_one_partition_by_its_name(ask: Ask, storage: frazil.Storage, mover: HandMover) -> None:
    for number in (0, 1):
        part = storage.topic(f"/shop/many-part-{number}")
        publish(part, 10 * (number + 1))
        mover.move(part)
        publish(part, 1)
    assert ask("select count(*) from shop.many") == [(32,)]
    assert ask("""select count(*), min(_topic_partition) from shop."many-part-0" """) == [(11, 0)]
    assert ask("""select count(*), min(_topic_partition) from shop."many-part-1" """) == [(21, 1)]
    with pytest.raises(frazil.InvalidInput, match=r"no topic or table shop\.many-part-2"):
        ask("""select 1 from shop."many-part-2" """)


def test_halves_of_floats_can_be_asked_for_in_log_and_table(
    ask: Ask, storage: frazil.Storage, mover: HandMover
) -> None:
    own = pa.schema([("half", pa.float16())])
    topic = storage.topic("/shop/halves", schema=own)
    for value in (1.5, 2.5):
        topic.publish_many(pa.record_batch([pa.array([np.float16(value)], pa.float16())], schema=own))
        assert ask("select sum(half) from shop.halves") == [(1.5 if value == 1.5 else 4.0,)]
        mover.move(topic)
