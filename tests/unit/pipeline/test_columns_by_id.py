"""Columns of a topic and of its table belong together by field id, whatever names another engine gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import frazil
from frazil.core.settings import Settings, make_settings
from frazil.lake.read.history import TableHistories
from frazil.lake.tables.field_ids import COLUMNS
from frazil.node.query.session import SqlSession
from frazil.node.tiers.logs import FileView
from frazil.node.verify.proofs import prove
from parts.in_process import MoverHere

TOPIC = "/shop/orders"
PLACE = pa.struct([("city", pa.string()), ("zip", pa.int64())])
SCHEMA = pa.schema([("amount", pa.int64()), ("item", pa.string()), ("place", PLACE), ("tags", pa.list_(PLACE))])


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings({"data": tmp_path / "data"})


def row(number: int, schema: pa.Schema = SCHEMA) -> dict[str, Any]:
    place = {"city": f"city {number}", "zip": number}
    values = {"amount": number, "item": f"item {number}", "place": place, "tags": [place]}
    return {name: values.get(name) for name in schema.names}


def publish(storage: frazil.Storage, *numbers: int, schema: pa.Schema = SCHEMA) -> None:
    rows = pa.RecordBatch.from_pylist([row(number, schema) for number in numbers], schema=schema)
    storage.topic(TOPIC).publish_many(rows)


def read_back(settings: Settings, storage: frazil.Storage) -> list[dict[str, Any]]:
    """The rows of the table alone, by the topic's own schema."""
    topic = storage.topic(TOPIC)
    history = TableHistories(settings).of(topic.log.name, topic.log.log_id)
    assert history is not None
    assert topic.schema is not None
    found = pa.Table.from_batches(history.read(0, topic.stats().end, topic.log.schema))
    rows: list[dict[str, Any]] = found.select(topic.schema.names).to_pylist()
    return rows


def asked(settings: Settings, query: str) -> list[dict[str, Any]]:
    with SqlSession(settings, FileView(settings)) as session:
        return [each for batch in session.run(query).batches for each in batch.to_pylist()]


RENAMES = {
    "a column": [("item", "product")],
    "two that change places": [("item", "x"), ("place", "item"), ("x", "place")],
    "a field within a column": [("place.city", "town")],
    "fields that change places": [("tags.element.city", "x"), ("tags.element.zip", "city"), ("tags.element.x", "zip")],
    "a column of Frazil's own": [("_append_time", "time")],
    "the offset": [("_offset", "position")],
}


@pytest.mark.parametrize("what", RENAMES)
def test_renamed_elsewhere_it_reads_as_it_was_and_new_rows_go_to_the_same_column(settings: Settings, what: str) -> None:
    with frazil.open(settings) as storage:
        storage.create_topic(TOPIC, schema=SCHEMA)
        here = MoverHere(settings, storage)
        publish(storage, 1, 2)
        assert here.errors() == {TOPIC: None}
        for old, new in RENAMES[what]:
            with here.table(TOPIC).update_schema() as update:
                update.rename_column(old, new)
        assert read_back(settings, storage) == [row(1), row(2)]
        columns = here.table(TOPIC).schema().column_names
        publish(storage, 3)
        assert here.errors() == {TOPIC: None}  # by the table that it remembers
        here.mover.forget()
        publish(storage, 4)
        assert here.errors() == {TOPIC: None}
        assert here.table(TOPIC).schema().column_names == columns
        assert read_back(settings, storage) == [row(1), row(2), row(3), row(4)]
        (proof,) = prove(settings, TOPIC, lambda _: lambda _: None)
    assert (proof.proven, proof.problems, proof.checked) == (True, [], 4)


def test_a_topic_that_grows_after_a_rename_gets_its_new_column(settings: Settings) -> None:
    wider = pa.schema([*SCHEMA, ("note", pa.string())])
    with frazil.open(settings) as storage:
        storage.create_topic(TOPIC, schema=SCHEMA)
        here = MoverHere(settings, storage)
        publish(storage, 1)
        here.tick()
        with here.table(TOPIC).update_schema() as update:
            update.rename_column("item", "product")
        storage.change_schema(TOPIC, wider)
        publish(storage, 2, schema=wider)
        assert here.errors() == {TOPIC: None}
        assert here.table(TOPIC).schema().as_arrow().names[3:] == ["amount", "product", "place", "tags", "note"]
        assert read_back(settings, storage) == [row(1, wider), row(2, wider)]


def test_a_new_column_whose_name_another_has_by_now_is_refused_by_name(settings: Settings) -> None:
    wider = pa.schema([*SCHEMA, ("product", pa.string())])
    with frazil.open(settings) as storage:
        storage.create_topic(TOPIC, schema=SCHEMA)
        here = MoverHere(settings, storage)
        publish(storage, 1)
        here.tick()
        with here.table(TOPIC).update_schema() as update:
            update.rename_column("item", "product")
        storage.change_schema(TOPIC, wider)
        publish(storage, 2, schema=wider)
        assert "column product can't be added" in str(here.errors()[TOPIC])
        with here.table(TOPIC).update_schema() as update:
            update.rename_column("product", "their_item")
        assert here.errors() == {TOPIC: None}
        assert read_back(settings, storage) == [row(1, wider), row(2, wider)]


def test_another_engines_column_by_the_old_name_is_not_taken_for_ours(settings: Settings) -> None:
    with frazil.open(settings) as storage:
        storage.create_topic(TOPIC, schema=SCHEMA)
        here = MoverHere(settings, storage)
        publish(storage, 1)
        here.tick()
        table = here.table(TOPIC)
        with table.update_schema() as update:
            update.rename_column("item", "product")
        with table.update_schema() as update:
            update.add_column("item", table.schema().find_type("amount"))
        publish(storage, 2)
        here.mover.forget()
        assert here.errors() == {TOPIC: None}
        assert read_back(settings, storage) == [row(1), row(2)]
        assert here.rows(TOPIC, "product", "item") == [
            {"product": "item 1", "item": None},
            {"product": "item 2", "item": None},
        ]


def test_a_dropped_column_is_refused_by_name_until_the_mover_has_made_it_anew(settings: Settings) -> None:
    with frazil.open(settings) as storage:
        storage.create_topic(TOPIC, schema=SCHEMA)
        here = MoverHere(settings, storage)
        publish(storage, 1)
        here.tick()
        with here.table(TOPIC).update_schema() as update:
            update.delete_column("item")
        with pytest.raises(frazil.TableRefused, match="column item was dropped"):
            read_back(settings, storage)
        publish(storage, 2)
        here.tick()
        assert here.errors() == {TOPIC: None}
        assert read_back(settings, storage) == [{**row(1), "item": None}, row(2)]


def test_a_read_only_node_shows_the_topics_names(settings: Settings) -> None:
    with frazil.open(settings) as storage:
        storage.create_topic(TOPIC, schema=SCHEMA)
        here = MoverHere(settings, storage)
        publish(storage, 1)
        here.tick()
        with here.table(TOPIC).update_schema() as update:
            update.rename_column("item", "product")
    with frazil.open_read_only(settings) as node:
        rows = pa.Table.from_batches(node.topic(TOPIC).read_batches("earliest"))
    assert rows["item"].to_pylist() == ["item 1"]


def test_a_required_column_that_becomes_nullable_is_moved_on(settings: Settings) -> None:
    required, nullable = (pa.schema([pa.field("celsius", pa.int64(), nullable=may)]) for may in (False, True))
    with frazil.open(settings) as storage:
        storage.create_topic(TOPIC, schema=required)
        here = MoverHere(settings, storage)
        storage.topic(TOPIC).publish_many(pa.record_batch([[1]], schema=required))
        assert here.errors() == {TOPIC: None}
        storage.change_schema(TOPIC, nullable)
        storage.topic(TOPIC).publish_many(pa.record_batch([[None]], schema=nullable))
        assert here.errors() == {TOPIC: None}
        assert here.rows(TOPIC, "celsius") == [{"celsius": 1}, {"celsius": None}]
        assert read_back(settings, storage) == [{"celsius": 1}, {"celsius": None}]


def test_what_is_remembered_and_cannot_be_read_is_named(settings: Settings) -> None:
    with frazil.open(settings) as storage:
        here = MoverHere(settings, storage)
        storage.topic(TOPIC).publish("one")
        here.tick()
        with here.table(TOPIC).transaction() as transaction:
            transaction.set_properties({COLUMNS: "[]"})
        storage.topic(TOPIC).publish("two")
        here.mover.forget()
        assert COLUMNS in str(here.errors()[TOPIC])


def test_sql_has_a_renamed_column_by_its_name_in_the_table_for_rows_of_table_and_log(settings: Settings) -> None:
    with frazil.open(settings) as storage:
        storage.create_topic(TOPIC, schema=SCHEMA)
        here = MoverHere(settings, storage)
        publish(storage, 1)
        here.tick()
        for old, new in (("item", "product"), ("place.city", "town"), ("_offset", "position")):
            with here.table(TOPIC).update_schema() as update:
                update.rename_column(old, new)
        publish(storage, 2)
        found = asked(settings, "select * from shop.orders order by position")
    assert [(each["position"], each["product"]) for each in found] == [(0, "item 1"), (1, "item 2")]
    assert [each["place"] for each in found] == [{"town": f"city {number}", "zip": number} for number in (1, 2)]
    assert "item" not in found[0]


def test_sql_refuses_a_dropped_column_of_the_topic_as_a_reader_does(settings: Settings) -> None:
    with frazil.open(settings) as storage:
        storage.create_topic(TOPIC, schema=SCHEMA)
        here = MoverHere(settings, storage)
        publish(storage, 1)
        here.tick()
        with here.table(TOPIC).update_schema() as update:
            update.delete_column("item")
        with pytest.raises(frazil.TableRefused, match="column item was dropped"):
            asked(settings, "select count(*) from shop.orders")


def test_sql_of_a_topic_that_was_made_again_has_its_columns_alone(settings: Settings) -> None:
    other = pa.schema([("item", pa.int64())])
    with frazil.open(settings) as storage:
        storage.create_topic(TOPIC, schema=SCHEMA)
        publish(storage, 1)
        MoverHere(settings, storage).tick()
        storage.delete_topic(TOPIC)
        storage.create_topic(TOPIC, schema=other)
        storage.topic(TOPIC).publish_many(pa.record_batch([[7]], schema=other))
        (found,) = asked(settings, "select * from shop.orders")
    assert [name for name in found if not name.startswith("_")] == ["item"]
    assert found["item"] == 7
