"""A commit is for one table and one log, by their ids: neither may be another by the time it is made."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import frazil
from frazil.core.settings import Settings, make_settings
from parts.in_process import MoverHere

TOPIC, TABLE = "/shop/orders", ("shop", "orders")
SCHEMA = pa.schema([("amount", pa.int64()), ("customer", pa.int64())])
OURS = ("_offset", "_topic_partition", "_append_time")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings({"data": tmp_path / "data"})


def made_again(here: MoverHere, *columns: str) -> None:
    """The table is dropped, and made again with these columns in this order."""
    place, there = here.table(TOPIC).location(), here.table(TOPIC).schema().as_arrow()
    here.catalog.drop_table(TABLE)
    fields = [pa.field(name, there.field(name).type, there.field(name).nullable) for name in (*OURS, *columns)]
    here.catalog.create_table(TABLE, schema=pa.schema(fields), location=f"{place}-new")


def test_a_table_made_again_during_its_first_move_gets_no_files_of_the_old_one(settings: Settings) -> None:
    todo = [("customer", "amount")]

    def meddle() -> None:
        while todo:
            made_again(here, *todo.pop())

    with frazil.open(settings) as storage:
        storage.create_topic(TOPIC, schema=SCHEMA)
        here = MoverHere(settings, storage, meddle)
        storage.topic(TOPIC).publish_many(pa.record_batch([[1, 2], [100, 200]], schema=SCHEMA))
        here.tick()
        assert here.rows(TOPIC, "amount") == []
        assert here.errors() == {TOPIC: None}
    assert here.rows(TOPIC, "amount", "customer") == [{"amount": 1, "customer": 100}, {"amount": 2, "customer": 200}]
    in_table = {task.file.file_path.removeprefix("file://") for task in here.table(TOPIC).scan().plan_files()}
    assert {str(path) for path in (settings.data or Path()).rglob("*.parquet")} == in_table


def test_a_table_made_again_with_fewer_columns_under_the_same_schema_id_gets_them(settings: Settings) -> None:
    with frazil.open(settings) as storage:
        storage.create_topic(TOPIC, schema=SCHEMA)
        here = MoverHere(settings, storage)
        storage.topic(TOPIC).publish_many(pa.record_batch([[1], [100]], schema=SCHEMA))
        assert here.errors() == {TOPIC: None}
        made_again(here, "amount")
        here.mover.forget()
        assert here.errors() == {TOPIC: None}
    assert here.rows(TOPIC, "amount", "customer") == [{"amount": 1, "customer": 100}]


def test_a_column_dropped_during_a_move_does_not_take_the_new_values_with_it(settings: Settings) -> None:
    todo = ["customer"]

    def meddle() -> None:
        while todo and armed:
            with here.table(TOPIC).update_schema() as schema:
                schema.delete_column(todo.pop())

    with frazil.open(settings) as storage:
        storage.create_topic(TOPIC, schema=SCHEMA)
        armed: list[bool] = []
        here = MoverHere(settings, storage, meddle)
        storage.topic(TOPIC).publish_many(pa.record_batch([[1], [100]], schema=SCHEMA))
        here.tick()
        armed.append(True)
        storage.topic(TOPIC).publish_many(pa.record_batch([[2], [200]], schema=SCHEMA))
        here.tick()
        assert here.errors() == {TOPIC: None}
    assert here.rows(TOPIC, "amount", "customer") == [{"amount": 1, "customer": None}, {"amount": 2, "customer": 200}]


def test_of_two_logs_that_meet_in_one_table_the_second_is_refused_at_its_commit(tmp_path: Path) -> None:
    lake = {"catalog": {"uri": f"sqlite:///{tmp_path}/catalog.db"}, "object_store": {"path": tmp_path / "warehouse"}}
    one, two = (make_settings({"data": tmp_path / name, **lake}) for name in ("one", "two"))
    errors: dict[str, str | None] = {}

    def first_commits() -> None:
        errors.update(first.errors())

    with frazil.open(one) as mine, frazil.open(two) as theirs:
        mine.topic(TOPIC).publish("of the first")
        theirs.topic(TOPIC).publish("of the second")
        first, second = MoverHere(one, mine), MoverHere(two, theirs, first_commits)
        refused = second.errors()
        assert errors == {TOPIC: None}
        assert mine.topic(TOPIC).log.log_id in str(refused[TOPIC])
    assert [row["_payload"] for row in first.rows(TOPIC)] == [b"of the first"]
