"""Two movers with different settings for the same topics and tables: each row once, or an error that names the setting.

The lease keeps the movers of one owner apart, but the lead passes from one to the other, also in the middle of a move.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import frazil
from frazil.core.settings import Settings, make_settings
from frazil.lake.tables.schema import table_columns
from frazil.pipeline.move.outputs import Target
from frazil.pipeline.move.tasks import LogRange, RangeInput, RangeOutput, move_range
from frazil.pipeline.transform.statement import Statement
from frazil.testing.jobs import InProcessJobs
from parts.in_process import MoverHere

TOPIC, PARTS = "/shop/orders", ("/shop/orders-part-0", "/shop/orders-part-1")
SCHEMA = pa.schema([("amount", pa.int64())])
SQL = {"sql": "select * from topic"}
RESULT = "holds the result of a statement"


class Statements(InProcessJobs):
    """Runs `select * from topic` without Spark: a stand-in for Spark SQL, whose results take the same way from here."""

    def result_columns(self, statement: Statement, stored: pa.Schema) -> pa.Schema:
        return table_columns(stored)

    def run_statement(
        self,
        statement: Statement,
        tasks: Sequence[Sequence[LogRange]],
        stored: pa.Schema,
        columns: pa.Schema,
        target: Target,
        flush_bytes: int,
    ) -> RangeOutput:
        self.meanwhile()
        (source,) = (one for task in tasks for one in task)
        output = move_range(RangeInput(source, (target,), flush_bytes))
        return replace(output, written=tuple(replace(one, is_result=True) for one in output.written), streams={})


def settings_with(folder: Path, **sections: Any) -> Settings:
    lake = {"catalog": {"uri": f"sqlite:///{folder}/catalog.db"}, "object_store": {"path": folder / "warehouse"}}
    return make_settings({"data": folder / "data", **lake, **sections})


def publish(storage: frazil.Storage, topic: str, *amounts: int) -> None:
    storage.topic(topic).publish_many(pa.record_batch([list(amounts)], schema=SCHEMA))


def test_they_take_turns_and_change_nothing_that_the_other_has_set(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Sizes of batches, numbers of snapshots, partitioning and the place of new tables are not the same for both."""
    one = settings_with(tmp_path, writer={"batch_size": 2}, maintenance={"snapshots_max": 4, "snapshots_min": 2})
    two = settings_with(
        tmp_path,
        object_store={"path": tmp_path / "elsewhere"},
        writer={"batch_size": 100, "max_memory_bytes": 1 << 23},
        topics={TOPIC: {"partitioning": ["bucket[4](amount)"]}},
    )
    with frazil.open(one) as storage, caplog.at_level(logging.WARNING, "frazil.lake"):
        storage.create_topic(TOPIC, schema=SCHEMA)
        movers = [MoverHere(settings, storage) for settings in (one, two)]
        states = []
        for number in range(12):
            publish(storage, TOPIC, number)
            assert movers[number % 2].errors() == {TOPIC: None}
            states.append(movers[0].table(TOPIC))
        assert [row["amount"] for row in movers[0].rows(TOPIC, "amount")] == list(range(12))
    settled = [{k: v for k, v in table.properties.items() if ".orders" not in k and not _moves(k)} for table in states]
    assert all(each == settled[0] for each in settled)
    assert {(t.metadata.current_schema_id, t.metadata.default_spec_id, t.location()) for t in states} == {
        (0, 0, f"file://{tmp_path}/warehouse/shop/orders")
    }
    told = [record.message for record in caplog.records if "is partitioned by" in record.message]
    assert len(told) == 1
    assert f"topics.{TOPIC}.partitioning" in told[0]


def _moves(key: str) -> bool:
    """Whether a property is one that each commit sets anew."""
    return key.rsplit(".", 1)[-1] in ("end", "move", "sequence", "last", "sum", "partition")


@pytest.mark.parametrize("statement_first", [True, False])
def test_a_topic_is_moved_plain_or_by_a_statement_but_not_by_both(tmp_path: Path, statement_first: bool) -> None:
    """The second one's files are written when the first one's results are in."""
    plain, by_statement = settings_with(tmp_path), settings_with(tmp_path, topics={TOPIC: SQL})
    with frazil.open(plain) as storage:
        storage.create_topic(TOPIC, schema=SCHEMA)
        publish(storage, TOPIC, 1, 2)
        results = MoverHere(by_statement, storage, jobs=Statements())
        todo = [results] if statement_first else []

        def meanwhile() -> None:
            while todo:
                assert todo.pop().errors() == {TOPIC: None}

        rows = MoverHere(plain, storage, meanwhile)
        rows.tick()
        publish(storage, TOPIC, 3)
        assert results.errors() == {TOPIC: None}
        rows.tick()  # which may remember the table of before
        assert RESULT in str(rows.errors()[TOPIC])
        publish(storage, TOPIC, 4)
        assert RESULT in str(rows.errors()[TOPIC])
        assert results.errors() == {TOPIC: None}
        assert [row["amount"] for row in results.rows(TOPIC, "amount")] == [1, 2, 3, 4]


def test_rows_are_not_committed_beside_results_that_another_has_committed_for_the_table_meanwhile(
    tmp_path: Path,
) -> None:
    """Two partitions share the table: the token of the one is where it was, but the table is another's by then."""
    plain, by_statement = settings_with(tmp_path), settings_with(tmp_path, topics={TOPIC: SQL})
    with frazil.open(plain) as storage:
        for name in PARTS:
            storage.create_topic(name, schema=SCHEMA)
        publish(storage, PARTS[0], 1, 2)
        results = MoverHere(by_statement, storage, jobs=Statements())
        todo = [results]

        def meanwhile() -> None:
            while todo:
                publish(storage, PARTS[1], 3)
                found = todo.pop().mover
                _only(found, PARTS[1])
                assert found.tick(all_of_it=True).failures == 0

        rows = MoverHere(plain, storage, meanwhile)
        assert rows.tick().rows == 0
        assert RESULT in str(rows.errors()[PARTS[0]])
        assert [row["amount"] for row in rows.rows(TOPIC, "amount")] == [3]


def _only(mover: Any, topic: str) -> None:
    """Let a mover see one topic alone, as if the other had no rows yet."""
    found = mover._source.logs
    mover._source.logs = lambda: [info for info in found() if str(info.topic) == topic]


def test_partitions_of_one_table_have_a_statement_all_of_them_or_none(tmp_path: Path) -> None:
    settings = settings_with(tmp_path, topics={PARTS[1]: SQL})
    with frazil.open(settings) as storage:
        for name in (*PARTS, "/shop/returns"):
            storage.create_topic(name, schema=SCHEMA)
            publish(storage, name, 1)
        here = MoverHere(settings, storage, jobs=Statements())
        errors = here.errors()
        assert errors["/shop/returns"] is None
        for name in PARTS:
            assert f"set topics.{PARTS[1]}.sql for all partitions of the topic, or for none" in str(errors[name])
        assert not here.catalog.table_exists(("shop", "orders"))
