"""The proof holds where all is well, and names what is wrong where something is."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from tiers import publish, remove_what_the_table_has, rewrite, rows_of

import frazil
from frazil.core.settings import Settings
from frazil.lake.accept import accept
from frazil.lake.history import TableHistories
from frazil.log.info import LogInfo, log_info
from frazil.topics.logs import FileView
from frazil.topics.verify import Proof, verify
from parts.moving import HandMover

Prove = Callable[[], Proof]


@pytest.fixture
def prove(settings: Settings, storage: frazil.Storage, topic: frazil.Topic) -> Prove:
    def run() -> Proof:
        seen: list[int] = []

        def ask() -> LogInfo:
            return log_info(storage, topic.name)

        history = TableHistories(settings).of(topic.log.name, topic.log.log_id)
        return verify(ask, FileView(settings).read, history, seen.append)

    return run


def found(proof: Proof) -> list[tuple[str, int, int]]:
    return [(problem.kind, problem.range.start, problem.range.end) for problem in proof.problems]


def change(rows: pa.Table, offset: int) -> pa.Table:
    """The rows with another payload at one offset."""
    payloads = rows["_payload"].to_pylist()
    payloads[rows["_offset"].to_pylist().index(offset)] = b"forged"
    at = rows.schema.get_field_index("_payload")
    return rows.set_column(at, rows.schema.field(at), pa.array(payloads, rows.schema.field(at).type))


def test_all_is_well(prove: Prove) -> None:
    proof = prove()
    assert proof.proven
    assert (proof.end, proof.in_table, proof.in_log) == (5_000, 4_000, 1_000)
    assert proof.checksums >= 3


def test_a_compacted_table_is_as_good(prove: Prove, topic: frazil.Topic, mover: HandMover) -> None:
    table = mover.table(topic)
    rewrite(table, rows_of(table, [("_payload", "ascending")]), [1_000, 1_001])
    proof = prove()
    assert proof.proven
    assert proof.checksums >= 3


def test_a_gap(prove: Prove, topic: frazil.Topic, mover: HandMover) -> None:
    mover.table(topic).delete("(_offset >= 700 and _offset < 710) or _offset = 900")
    assert found(prove()) == [("missing", 700, 710), ("missing", 900, 901)]


def test_a_double(prove: Prove, topic: frazil.Topic, mover: HandMover) -> None:
    table = mover.table(topic)
    table.append(table.scan(row_filter="_offset >= 700 and _offset < 710").to_arrow())
    assert found(prove()) == [("double", 700, 710)]


def test_a_changed_row_that_only_the_table_has(prove: Prove, topic: frazil.Topic, mover: HandMover) -> None:
    table = mover.table(topic)
    rewrite(table, change(rows_of(table, [("_offset", "ascending")]), 1_500), [])
    ((kind, start, end),) = found(prove())
    assert kind == "changed"
    assert start <= 1_500 < end <= 2_700


def test_a_changed_row_that_the_log_still_has(prove: Prove, topic: frazil.Topic, mover: HandMover) -> None:
    table = mover.table(topic)
    rewrite(table, change(rows_of(table, [("_offset", "ascending")]), 3_777), [])
    assert ("changed", 3_777, 3_778) in found(prove())


def test_rows_that_no_move_brought(prove: Prove, topic: frazil.Topic, mover: HandMover) -> None:
    table = mover.table(topic)
    extra = table.scan(row_filter="_offset = 5").to_arrow()
    at = extra.schema.get_field_index("_offset")
    table.append(extra.set_column(at, extra.schema.field(at), pa.array([4_200], pa.int64())))
    assert found(prove()) == [("beyond", 4_200, 4_201)]


def test_a_table_rolled_back(prove: Prove, topic: frazil.Topic, mover: HandMover) -> None:
    before = mover.table(topic).current_snapshot()
    assert before is not None
    mover.move(topic)
    assert prove().proven
    mover.table(topic).manage_snapshots().set_current_snapshot(before.snapshot_id).commit()
    assert found(prove())[0] == ("rolled back", 4_000, 5_000)


def test_a_log_that_lost_rows_of_the_table(prove: Prove, topic: frazil.Topic, mover: HandMover) -> None:
    """A log put back from an old copy ends before the table does."""
    mover.move(topic)
    table = mover.table(topic)
    log_id = topic.log.log_id
    with table.transaction() as forged:
        forged.set_properties({f"frazil.{log_id}.end": "5100"})
        forged.append(
            table.scan(row_filter="_offset < 1").to_arrow(), snapshot_properties={f"frazil.{log_id}.end": "5100"}
        )
    assert ("lost", 5_000, 5_100) in found(prove())


def test_a_segment_that_is_damaged(settings: Settings, prove: Prove, topic: frazil.Topic) -> None:
    segment = topic.log.segments[-2]
    assert segment.base >= 4_000
    content = bytearray(segment.path.read_bytes())
    content[len(content) // 2] ^= 1
    segment.path.write_bytes(content)
    ((kind, start, end),) = found(prove())
    assert kind == "unreadable"
    assert segment.base <= start < end == 5_000


def test_rows_that_are_nowhere(prove: Prove, storage: frazil.Storage, topic: frazil.Topic) -> None:
    remove_what_the_table_has(storage, topic, 4_600)  # more than the table has
    first = topic.stats().first_offset
    assert first > 4_000
    assert found(prove()) == [("missing", 4_000, first)]


def test_rows_that_move_meanwhile(
    settings: Settings, storage: frazil.Storage, topic: frazil.Topic, mover: HandMover
) -> None:
    """Between the look at the log and the walk over it, all is moved, removed, and more published."""
    asked = 0

    def ask() -> LogInfo:
        nonlocal asked
        asked += 1
        info = log_info(storage, topic.name)
        if asked == 2:
            publish(topic, 500)
            remove_what_the_table_has(storage, topic, mover.move(topic))
        return info

    history = TableHistories(settings).of(topic.log.name, topic.log.log_id)
    proof = verify(ask, FileView(settings).read, history, lambda _: None)
    assert found(proof) == []
    assert proof.end == proof.in_table == 5_500


def test_a_gap_that_was_accepted(prove: Prove, storage: frazil.Storage, topic: frazil.Topic, mover: HandMover) -> None:
    """Readers go on behind it, and the proof tells of it."""
    remove_what_the_table_has(storage, topic, 4_600)  # more than the table has
    first = topic.stats().first_offset
    with pytest.raises(frazil.RowsMissing, match=f"does not hold offsets 4000 up to {first}"):
        list(topic.read(3_990))
    assert accept(mover.catalog, mover.name(topic), topic.log.log_id, first, "a person") == first
    assert [message.offset for message in topic.read(3_990)] == [*range(3_990, 4_000), *range(first, 5_000)]
    proof = prove()
    assert proof.proven
    assert proof.gaps == [frazil.OffsetRange(4_000, first)]
    mover.tables.forget(mover.name(topic))
    mover.move(topic)
    after = prove()
    assert after.proven
    assert after.in_table == 5_000 - (first - 4_000)


def test_a_topic_made_again(storage: frazil.Storage, topic: frazil.Topic, mover: HandMover) -> None:
    """Its offsets begin anew: the table of the earlier one is not for it."""
    storage.delete_topic(topic.name)
    again = storage.topic(topic.name)
    publish(again, 10)
    with pytest.raises(frazil.TableRefused, match="rows of an earlier topic of that name"):
        mover.move(again)
    assert [message.offset for message in again.read()] == list(range(10))
