"""SQL over a topic: table and log as one, exactly, whatever the table's files are like."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone

import pyarrow as pa
import pytest
from tiers import publish, remove_what_the_table_has, rewrite, rows_of

import frazil
from frazil.core.settings import Settings
from frazil.topics.logs import FileView
from frazil.topics.sql import AsOf, SqlSession
from parts.moving import HandMover

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
