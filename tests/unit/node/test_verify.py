"""The proof holds where all is well, and names what is wrong where something is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from tiers import publish, remove_what_the_table_has, rewrite, rows_of

import frazil
from frazil.core.settings import FlightSettings, Settings
from frazil.doors.flight.door import flight_door
from frazil.lake.read.history import TableHistories
from frazil.lake.tables.accept import accept
from frazil.log.folder.ownership import published_addresses
from frazil.log.info import LogInfo, log_info
from frazil.node.tiers.logs import FileView
from frazil.node.verify.proofs import prove as prove_all
from frazil.node.verify.verify import TopicProof, verify
from parts.moving import HandMover

Prove = Callable[[], TopicProof]


@pytest.fixture
def prove(settings: Settings, storage: frazil.Storage, topic: frazil.Topic) -> Prove:
    def run() -> TopicProof:
        seen: list[int] = []

        def ask() -> LogInfo:
            return log_info(storage, topic.name)

        history = TableHistories(settings).of(topic.log.name, topic.log.log_id)
        return verify(ask, FileView(settings).read, history, seen.append)

    return run


def found(proof: TopicProof) -> list[tuple[str, int, int]]:
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
    first = topic.log.first_offset
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
    first = topic.log.first_offset
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
    with pytest.raises(frazil.FrazilError, match="rows of an earlier topic of that name"):
        mover.move(again)
    assert [message.offset for message in again.read()] == list(range(10))


# --- every offset from 0 is accounted for


def test_a_dropped_table_leaves_its_rows_unaccounted_for(prove: Prove, topic: frazil.Topic, mover: HandMover) -> None:
    first = topic.log.first_offset
    mover.catalog.drop_table(mover.name(topic).identifier)
    proof = prove()
    assert found(proof) == [("missing", 0, first)]
    assert "removal was not recorded" in proof.problems[0].detail
    assert (proof.in_table, proof.in_log, proof.dropped) == (0, 5_000 - first, [])


def test_rows_removed_without_a_record_are_accepted_by_name(
    prove: Prove, topic: frazil.Topic, mover: HandMover
) -> None:
    """As a folder is that removed rows before removals were recorded, and never had a table."""
    first = topic.log.first_offset
    mover.catalog.drop_table(mover.name(topic).identifier)
    assert not prove().proven
    mover.tables.forget_all()
    mover.tables.ensure(mover.name(topic), topic.log.schema)
    assert accept(mover.catalog, mover.name(topic), topic.log.log_id, first, "a person") == first
    proof = prove()
    assert proof.proven
    assert proof.gaps == [frazil.OffsetRange(0, first)]


def test_a_recorded_removal_is_part_of_the_proof(
    settings: Settings, storage: frazil.Storage, topic: frazil.Topic, mover: HandMover
) -> None:
    first = topic.log.first_offset
    mover.catalog.drop_table(mover.name(topic).identifier)
    history = TableHistories(settings).of(topic.log.name, topic.log.log_id)

    def proof(recorded_end: int) -> TopicProof:
        def ask() -> LogInfo:
            return replace(log_info(storage, topic.name), dropped=(frazil.OffsetRange(0, recorded_end),))

        return verify(ask, FileView(settings).read, history, lambda _: None)

    whole, part = proof(first), proof(first - 100)
    assert whole.proven
    assert whole.as_dict()["dropped"] == [[0, first]]
    assert found(part) == [("missing", first - 100, first)]


def test_a_log_damaged_where_the_table_has_its_rows(prove: Prove, topic: frazil.Topic) -> None:
    """Readers take rows from the log as long as it has them, so they meet the damage."""
    segment = topic.log.segments[0]
    assert segment.base < 4_000
    content = bytearray(segment.path.read_bytes())
    content[len(content) // 2] ^= 1
    segment.path.write_bytes(content)
    kinds = {kind for kind, _, _ in found(prove())}
    assert kinds == {"unreadable"}


def test_of_a_result_of_a_statement_no_content_is_proven(prove: Prove, topic: frazil.Topic, mover: HandMover) -> None:
    with mover.table(topic).transaction() as change:
        change.set_properties({"frazil.transformed": "true"})
    first = topic.log.first_offset
    proof = prove()
    assert proof.proven
    assert (proof.in_table, proof.transformed, proof.in_log) == (0, first, 5_000 - first)


def test_a_topic_whose_log_cannot_be_opened_is_not_left_out(
    settings: Settings, storage: frazil.Storage, topic: frazil.Topic
) -> None:
    """Not even where the process that owns the folder tells only of logs that it can open."""
    storage.topic("/shop/returns").publish(b"one")
    storage.close()
    (segment,) = (settings.log_folder / "shop" / "returns").glob("*.wal")
    segment.write_bytes(b"not a segment")
    proofs = prove_all(settings, None, lambda _: lambda _: None)
    assert [(proof.topic, proof.proven) for proof in proofs] == [("/shop/orders", True), ("/shop/returns", False)]
    with (
        frazil.open(settings) as owner,
        flight_door(owner, FlightSettings(port=0), movers=True) as door,
        published_addresses(settings, {"flight": door.address}),
    ):
        proofs = prove_all(settings, None, lambda _: lambda _: None)
        assert [(proof.topic, proof.proven) for proof in proofs] == [("/shop/orders", True), ("/shop/returns", False)]


def test_a_topic_whose_files_are_gone_is_not_left_out(
    settings: Settings, storage: frazil.Storage, topic: frazil.Topic
) -> None:
    storage.topic("/shop/returns").publish(b"one")
    storage.close()
    shutil.rmtree(settings.log_folder / "shop" / "returns")
    proofs = prove_all(settings, "/shop/returns", lambda _: lambda _: None)
    assert [found(proof) for proof in proofs] == [[("unreadable", 0, 1)]]


# --- content is proven by checksums, all of it


def forget_snapshots(table: Table) -> None:
    kept = table.metadata.current_snapshot_id
    gone = [one.snapshot_id for one in table.snapshots() if one.snapshot_id != kept]
    table.maintenance.expire_snapshots().by_ids(gone).commit()


def test_rows_without_a_checksum_are_not_proven(prove: Prove, topic: frazil.Topic, mover: HandMover) -> None:
    """The property is lost, as when a table is copied, and so are the snapshots. What the log has is compared."""
    first = topic.log.first_offset
    table = mover.table(topic)
    with table.transaction() as change:
        change.remove_properties(f"frazil.{topic.log.log_id}.sum")
    rewrite(table, rows_of(table, [("_offset", "ascending")]), [])
    forget_snapshots(mover.table(topic))
    proof = prove()
    assert found(proof) == [("unproven", 0, first)]
    assert (proof.in_table, proof.checked) == (4_000, 4_000 - first)


def test_after_an_accepted_rollback_all_rows_have_a_checksum(
    prove: Prove, storage: frazil.Storage, topic: frazil.Topic, mover: HandMover
) -> None:
    before = mover.table(topic).metadata.current_snapshot_id
    mover.move(topic)
    mover.table(topic).manage_snapshots().rollback_to_snapshot(before).commit()
    accept(mover.catalog, mover.name(topic), topic.log.log_id, topic.log.first_offset, "a person")
    mover.tables.forget(mover.name(topic))
    mover.move(topic)
    table = mover.table(topic)
    rewrite(table, rows_of(table, [("_offset", "ascending")]), [])
    forget_snapshots(mover.table(topic))
    proof = prove()
    assert proof.proven
    assert proof.checked == 5_000
    table = mover.table(topic)
    rewrite(table, change(rows_of(table, [("_offset", "ascending")]), 10), [])
    forget_snapshots(mover.table(topic))
    assert found(prove()) == [("changed", 0, 5_000)]


def test_after_accepted_deletes_the_rows_that_are_left_have_a_checksum(
    prove: Prove, topic: frazil.Topic, mover: HandMover
) -> None:
    mover.table(topic).delete("_offset >= 700 and _offset < 710")
    accept(mover.catalog, mover.name(topic), topic.log.log_id, 0, "a person")
    forget_snapshots(mover.table(topic))
    proof = prove()
    assert proof.proven
    assert (proof.in_table, proof.checked, proof.gaps) == (3_990, 3_990, [frazil.OffsetRange(700, 710)])
    mover.tables.forget(mover.name(topic))
    mover.move(topic)
    table = mover.table(topic)
    rewrite(table, change(rows_of(table, [("_offset", "ascending")]), 10), [])
    forget_snapshots(mover.table(topic))
    assert found(prove()) == [("changed", 0, 5_000)]


def test_rows_of_a_partition_that_no_log_has(prove: Prove, topic: frazil.Topic, mover: HandMover) -> None:
    table = mover.table(topic)
    rows = table.scan(row_filter="_offset >= 10 and _offset < 13").to_arrow()
    at = rows.schema.get_field_index("_topic_partition")
    table.append(rows.set_column(at, rows.schema.field(at), pa.array([7] * 3, pa.int32())))
    assert found(prove()) == [("foreign", 10, 13)]


def test_a_file_that_is_gone_is_a_finding_of_its_topic_alone(
    settings: Settings, storage: frazil.Storage, topic: frazil.Topic, mover: HandMover
) -> None:
    other = storage.topic("/shop/teas")
    publish(other, 10)
    mover.move(other)
    file = next(iter(mover.table(topic).scan(row_filter="_offset = 2000").plan_files())).file
    Path(file.file_path.removeprefix("file://")).unlink()
    damaged, sound = prove_all(settings, None, lambda _: lambda _: None)
    assert sound.proven
    assert not damaged.proven
    (problem,) = damaged.problems
    assert problem.kind == "unreadable"
    assert problem.range.start <= 2_000 < problem.range.end
    assert file.file_path.rpartition("/")[2] in problem.detail
    assert damaged.checked == damaged.in_table == 4_000 - len(problem.range)


def test_a_token_that_was_set_back_is_a_finding(prove: Prove, topic: frazil.Topic, mover: HandMover) -> None:
    with mover.table(topic).transaction() as change:
        change.set_properties({f"frazil.{topic.log.log_id}.end": "1"})
    assert [problem.kind for problem in prove().problems][:1] == ["rolled back"]


def test_one_table_that_cannot_be_loaded_leaves_the_other_proofs(
    settings: Settings, storage: frazil.Storage, topic: frazil.Topic, mover: HandMover
) -> None:
    other = storage.topic("/shop/teas")
    publish(other, 10)
    mover.move(other)
    Path(mover.table(topic).metadata_location.removeprefix("file://")).unlink()
    damaged, sound = prove_all(settings, None, lambda _: lambda _: None)
    assert sound.proven
    assert [(problem.kind, problem.range.end) for problem in damaged.problems] == [("unreadable", 5_000)]
