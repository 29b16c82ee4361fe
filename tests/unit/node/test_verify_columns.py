"""A proof covers all columns of all rows, also of rows that are older than a column."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from tiers import remove_what_the_table_has, rewrite, rows_of

import frazil
from frazil.core.settings import Settings
from frazil.lake.read.history import TableHistories
from frazil.log.info import log_info
from frazil.node.tiers.logs import FileView
from frazil.node.verify.verify import TopicProof, verify
from parts.moving import HandMover

BEFORE = pa.schema([pa.field("a", pa.int64())])
AFTER = pa.schema([*BEFORE, pa.field("b", pa.string())])


@pytest.fixture
def typed(storage: frazil.Storage, mover: HandMover) -> frazil.Topic:
    """Rows from before a column came, which only the table has, and rows since."""
    topic = storage.topic("/shop/typed", schema=BEFORE)
    for start in (0, 50):
        topic.publish_many(pa.record_batch({"a": range(start, start + 50)}, schema=BEFORE))
        mover.move(topic)
    topic = storage.change_schema("/shop/typed", AFTER)
    for _ in range(40):
        topic.publish_many(pa.record_batch({"a": range(100), "b": ["x"] * 100}, schema=AFTER))
    mover.move(topic)
    remove_what_the_table_has(storage, topic, 4_100)
    assert topic.log.first_offset > 100
    return topic


def proof_of(settings: Settings, storage: frazil.Storage, topic: frazil.Topic) -> TopicProof:
    history = TableHistories(settings).of(topic.log.name, topic.log.log_id)
    return verify(lambda: log_info(storage, topic.name), FileView(settings).read, history, lambda _: None)


def forged(rows: pa.Table, offset: int) -> pa.Table:
    """The rows with a value of the new column at one offset."""
    values = rows["b"].to_pylist()
    values[offset] = "forged"
    at = rows.schema.get_field_index("b")
    return rows.set_column(at, rows.schema.field(at), pa.array(values, rows.schema.field(at).type))


def same(rows: pa.Table) -> pa.Table:
    return rows


@pytest.mark.parametrize("left", ["both", "checksum of all moves", "checksums of snapshots"])
@pytest.mark.parametrize(("change", "is_proven"), [(same, True), (lambda rows: forged(rows, 70), False)])
def test_rows_from_before_a_column_have_no_value_in_it(
    settings: Settings,
    storage: frazil.Storage,
    typed: frazil.Topic,
    mover: HandMover,
    change: Callable[[pa.Table], pa.Table],
    is_proven: bool,
    left: str,
) -> None:
    table = mover.table(typed)
    rewrite(table, change(rows_of(table, [("_offset", "ascending")])), [])
    if left == "checksums of snapshots":
        with table.transaction() as changing:
            changing.remove_properties(f"frazil.{typed.log.log_id}.sum")
    elif left == "checksum of all moves":
        old = [one.snapshot_id for one in table.snapshots() if one != table.current_snapshot()]
        table.maintenance.expire_snapshots().by_ids(old).commit()
    proof = proof_of(settings, storage, typed)
    assert proof.proven is is_proven
    if not is_proven:
        (problem,) = proof.problems
        assert (problem.kind, problem.range.start, problem.range.end) == ("changed", 70, 71)
        assert "`b`" in problem.detail
