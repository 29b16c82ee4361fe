"""Rows reach a table exactly once, whatever catalog keeps it: one suite over all of them.

Glue is a stand-in (moto's server): what it proves is our use of Glue's interface, not Glue itself. PostgreSQL, the REST
catalog (Nessie) and the S3 server are real.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from lakes import Lake, Meddling
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.transforms import BucketTransform

from frazil.core.errors import LakeUnavailable, TableRolledBack
from frazil.core.rows import ENVELOPE
from frazil.core.settings import Settings
from frazil.lake.commit.commit import Moved
from frazil.lake.tables.schema import TABLE_PROPERTIES, add_columns
from parts.fixtures import LAKES, lakes_of

WITH_HISTORY = lakes_of(*(kind for kind in LAKES if kind != "rest"))
"""Nessie keeps only the newest snapshot, so there is none to roll back to."""

WITH_REFUSALS = lakes_of(*(kind for kind in LAKES if kind != "glue"))
"""The stand-in for Glue does not look at the version that an update asks for, as Glue does: it can't referee a race."""


@pytest.fixture(params=lakes_of(*LAKES))
def lake(request: pytest.FixtureRequest, lake_settings: Callable[[str], Settings]) -> Lake:
    return Lake(request.param, lake_settings(request.param))


def second_writer(lake: Lake) -> Lake:
    """Another process as far as the table can tell; a catalog in memory can only be shared."""
    other = Lake(lake.kind, lake.settings, lake.name, lake.log_id)
    if lake.kind == "memory":
        other.catalog = lake.catalog
    return other


def test_table_and_namespace_are_made_on_first_use_where_the_layout_says(lake: Lake) -> None:
    lake.store()
    table = lake.table()
    warehouse = lake.catalog.properties["warehouse"].rstrip("/")
    place = f"{warehouse}/{lake.name.namespace}/{lake.name.table}"
    if lake.kind == "rest":  # Nessie chooses itself, and adds an id to the name that it was asked for
        assert table.location().startswith(f"{place}_")
    else:
        assert table.location() == place
    assert TABLE_PROPERTIES.items() - {("format-version", "2")} <= table.properties.items()
    assert lake.token() is None
    lake.store()  # and a second time it is only found


def test_two_may_make_the_same_table_at_once(lake: Lake) -> None:
    lakes = [lake, *(second_writer(lake) for _ in range(3))]
    failed: list[Exception] = []

    def make(one: Lake) -> None:
        try:
            one.store()
        except Exception as error:  # noqa: BLE001 - shown below
            failed.append(error)

    threads = [threading.Thread(target=make, args=(one,)) for one in lakes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert lake.offsets() == []


@pytest.mark.parametrize("lake", LAKES, indirect=True)
def test_rows_and_token_move_in_one_commit(lake: Lake) -> None:
    committed = lake.move(0, 10)
    assert [move.end for move in committed.mine] == [10]
    assert not committed.others
    token = lake.token()
    assert token is not None
    assert token.end == 10
    snapshot = lake.table().current_snapshot()
    assert snapshot is not None
    assert snapshot.snapshot_id == committed.snapshot_id
    assert snapshot.summary is not None
    said = snapshot.summary.additional_properties
    assert said[f"frazil.{lake.log_id}.end"] == "10"
    assert said[f"frazil.{lake.log_id}.start"] == "0"
    assert said[f"frazil.{lake.log_id}.rows"] == "10"
    assert said[f"frazil.{lake.log_id}.move"] == token.move_id
    lake.move(10, 15)
    assert lake.offsets() == list(range(15))


def test_logs_of_one_table_land_together(lake: Lake) -> None:
    other_log = str(uuid.uuid4())
    lake.commit(lake.written(0, 3), lake.written(0, 2, other_log))
    assert lake.offsets() == [0, 0, 1, 1, 2]
    assert [token.end for token in (lake.token(), lake.token(other_log)) if token] == [3, 2]


def test_the_same_move_committed_twice_lands_once(lake: Lake) -> None:
    moved = lake.written(0, 10)
    first = lake.commit(moved, move_id="the-move")
    again = lake.commit(moved, move_id="the-move")
    assert first.mine == again.mine == (moved,)
    assert lake.offsets() == list(range(10))
    assert lake.exists(moved)


@pytest.mark.parametrize("lake", LAKES, indirect=True)
def test_of_two_writers_with_the_same_range_one_lands_and_the_others_files_go(lake: Lake) -> None:
    other = second_writer(lake)
    ours, theirs = lake.written(0, 10), other.written(0, 10)
    assert lake.commit(ours).mine == (ours,)
    late = other.commit(theirs)
    assert late.others == (theirs,)
    assert not late.mine
    assert not other.exists(theirs)
    assert lake.exists(ours)
    assert lake.offsets() == list(range(10))


@pytest.mark.parametrize("lake", WITH_REFUSALS, indirect=True)
def test_two_writers_that_race_for_every_range_leave_each_row_once(lake: Lake) -> None:
    other = second_writer(lake)
    lake.store()
    landed: list[Moved] = []

    def run(writer: Lake) -> None:
        for start in range(0, 30, 5):
            landed.extend(writer.commit(writer.written(start, start + 5)).mine)

    threads = [threading.Thread(target=run, args=(writer,)) for writer in (lake, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lake.offsets() == list(range(30))
    assert sorted(move.start for move in landed) == list(range(0, 30, 5))


def test_files_of_a_log_that_was_half_moved_by_another_are_refused_by_that_log_alone(lake: Lake) -> None:
    second_log = str(uuid.uuid4())
    both = (lake.written(0, 4), lake.written(0, 6, second_log))
    lake.move(0, 4)
    committed = lake.commit(*both)
    assert committed.others == both[:1]
    assert committed.mine == both[1:]
    assert lake.offsets() == sorted([*range(4), *range(6)])


def test_a_compaction_in_between_leaves_the_same_files_to_land_on_the_new_parent(lake: Lake) -> None:
    lake.move(0, 5)
    lake.move(5, 10)
    moved, real = lake.written(10, 15), lake.catalog

    def compact_first(number: int, commit: Callable[[], Any]) -> Any:
        if number == 1:
            compact(real, lake)
        return commit()

    lake.catalog = Meddling(real, compact_first)
    assert lake.commit(moved).mine == (moved,)
    assert lake.catalog.commits == 2
    assert lake.exists(moved)
    assert lake.offsets() == list(range(15))


def compact(catalog: Any, lake: Lake) -> None:
    """All files as one, in one snapshot that adds no rows: what a compaction is to everyone else."""
    table = catalog.load_table(lake.name.identifier)
    old = [task.file for task in table.scan().plan_files()]
    rows = table.scan().to_arrow()
    new = lake.written(0, rows.num_rows).files
    assert len(new) < len(old)
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as producer:
        for file in old:
            producer.delete_data_file(file)
        for file in new:
            producer.append_data_file(file)


@pytest.mark.parametrize("error", [ConnectionResetError("reset"), TimeoutError("late"), CommitFailedException("409")])
@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
def test_an_answer_lost_before_or_after_the_commit_loses_and_doubles_nothing(
    lake: Lake, applied: bool, error: Exception
) -> None:
    """A refusal may lie as well: a gateway that sent a commit twice passes on the second answer."""
    lake.move(0, 5)
    moved = lake.written(5, 10)

    def lose_two(number: int, commit: Callable[[], Any]) -> Any:
        if number > 2:
            return commit()
        if applied:
            commit()
        raise error

    lake.catalog = Meddling(lake.catalog, lose_two)
    assert lake.commit(moved).mine == (moved,)
    assert lake.catalog.commits == (1 if applied else 3)
    assert lake.exists(moved)
    assert lake.offsets() == list(range(10))


@pytest.mark.parametrize("error", [ConnectionResetError("reset"), CommitFailedException("409")])
def test_a_try_that_landed_is_known_as_ours_when_another_has_moved_on_since(lake: Lake, error: Exception) -> None:
    """The token then names the other's move: only the files themselves can tell, and they must not be deleted."""
    other, moved = second_writer(lake), lake.written(0, 5)

    def land_and_be_passed(number: int, commit: Callable[[], Any]) -> Any:
        assert number == 1
        commit()
        other.move(5, 10)
        raise error

    lake.catalog = Meddling(lake.catalog, land_and_be_passed)
    committed = lake.commit(moved)
    assert committed.mine == (moved,)
    assert not committed.unused
    assert lake.exists(moved)
    assert lake.offsets() == list(range(10))


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("error", "left"), [(CommitFailedException("409"), 0), (TimeoutError("late"), 2)])
def test_manifests_of_refused_tries_are_dropped_and_those_of_unknown_ones_stay(
    lake: Lake, applied: bool, error: Exception, left: int
) -> None:
    """Also where the refusal lied: then the try is in, and its manifests are the table's own."""
    lake.move(0, 5)
    before, real = len(lake.metadata_files(".avro")), lake.catalog

    def fail_once(number: int, commit: Callable[[], Any]) -> Any:
        if number == 2:
            return commit()
        if applied:
            commit()
        raise error

    lake.catalog = Meddling(real, fail_once)
    lake.move(5, 10)
    lake.catalog = real
    expected = 2 if applied else 2 + left  # a manifest and its list for each try
    assert len(lake.metadata_files(".avro")) == before + expected
    assert lake.offsets() == list(range(10))


def test_a_try_that_lands_late_is_known_as_ours(lake: Lake) -> None:
    """It is applied after we looked again and before the next try, which is then refused."""
    lake.move(0, 5)
    moved = lake.written(5, 10)
    held: list[Callable[[], Any]] = []

    def hold_the_first(number: int, commit: Callable[[], Any]) -> Any:
        if number == 1:
            held.append(commit)
            raise TimeoutError("no answer yet")
        return commit()

    def let_it_land(attempt: int) -> None:
        if held:
            held.pop()()

    lake.catalog, lake.on_wait = Meddling(lake.catalog, hold_the_first), let_it_land
    assert lake.commit(moved).mine == (moved,)
    assert lake.catalog.commits == 2
    assert lake.exists(moved)
    assert lake.offsets() == list(range(10))


def test_files_stay_after_an_unknown_answer_even_if_another_moved_the_rows(lake: Lake) -> None:
    """Our try may still be on its way: only the orphan clean-up, much later, can know that it is not."""
    other, moved = second_writer(lake), lake.written(0, 5)

    def lose_and_be_passed(number: int, commit: Callable[[], Any]) -> Any:
        other.move(0, 5)
        raise TimeoutError("no answer")

    lake.catalog = Meddling(lake.catalog, lose_and_be_passed)
    committed = lake.commit(moved)
    assert committed.others == (moved,)
    assert not committed.unused
    assert lake.exists(moved)
    assert lake.offsets() == list(range(5))


def test_a_catalog_that_never_accepts_is_an_error_with_its_last_reason_and_deletes_nothing(lake: Lake) -> None:
    moved = lake.written(0, 5)

    def refuse(number: int, commit: Callable[[], Any]) -> Any:
        raise CommitFailedException("the branch is frozen")

    real = lake.catalog
    lake.catalog = Meddling(real, refuse)
    with pytest.raises(LakeUnavailable, match="the branch is frozen"):
        lake.commit(moved)
    lake.catalog = real
    assert lake.exists(moved)
    assert lake.commit(moved).mine == (moved,)


def test_a_range_without_rows_commits_a_snapshot(lake: Lake) -> None:
    before = lake.move(0, 5).snapshot_id
    empty = Moved(lake.log_id, 5, 9, (), 0, "00000000")
    committed = lake.commit(empty)
    assert committed.snapshot_id != before
    token = lake.token()
    assert token is not None
    assert token.end == 9
    assert lake.offsets() == list(range(5))


def test_a_first_range_without_rows_commits_too(lake: Lake) -> None:
    lake.commit(Moved(lake.log_id, 0, 7, (), 0, "00000000"))
    assert lake.offsets() == []
    lake.move(7, 9)
    assert lake.offsets() == [7, 8]


def test_a_table_that_lost_its_token_takes_no_later_range(lake: Lake) -> None:
    """Dropped and made again: landing here would hide that everything before is gone."""
    lake.move(0, 5)
    moved = lake.written(5, 10)
    lake.catalog.drop_table(lake.name.identifier)
    lake.store()
    assert lake.commit(moved).others == (moved,)
    assert lake.token() is None
    assert lake.offsets() == []


@pytest.mark.parametrize("lake", WITH_HISTORY, indirect=True)
def test_a_table_that_was_rolled_back_is_refused(lake: Lake) -> None:
    first = lake.move(0, 5).snapshot_id
    lake.move(5, 10)
    assert first is not None
    lake.table().manage_snapshots().rollback_to_snapshot(first).commit()
    with pytest.raises(TableRolledBack) as refused:
        lake.token()
    assert (refused.value.has, refused.value.had) == (5, 10)
    with pytest.raises(TableRolledBack):
        lake.move(10, 15)
    assert lake.offsets() == list(range(5))


@pytest.mark.parametrize("lake", WITH_HISTORY, indirect=True)
def test_a_table_that_was_rolled_back_to_before_its_first_move_is_refused(lake: Lake) -> None:
    """Nothing on that line speaks of the log: the property alone does."""
    lake.store()
    table = lake.table()
    with table.transaction() as transaction, transaction.update_snapshot().fast_append():
        pass
    by_another = lake.table().metadata.current_snapshot_id
    assert by_another is not None
    lake.move(0, 5)
    lake.table().manage_snapshots().rollback_to_snapshot(by_another).commit()
    with pytest.raises(TableRolledBack) as refused:
        lake.token()
    assert (refused.value.has, refused.value.had) == (0, 5)


@pytest.mark.parametrize("lake", WITH_HISTORY, indirect=True)
def test_expired_snapshots_do_not_look_like_a_rollback(lake: Lake) -> None:
    lake.move(0, 5)
    lake.move(5, 10)
    compact(lake.catalog, lake)
    table = lake.table()
    current = table.metadata.current_snapshot_id
    old = [snapshot.snapshot_id for snapshot in table.snapshots() if snapshot.snapshot_id != current]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    assert [snapshot.snapshot_id for snapshot in lake.table().snapshots()] == [current]
    lake.move(10, 15)
    assert lake.offsets() == list(range(15))


def test_a_compaction_does_not_look_like_a_rollback(lake: Lake) -> None:
    lake.move(0, 5)
    lake.move(5, 10)
    compact(lake.catalog, lake)
    token = lake.token()
    assert token is not None
    assert token.end == 10
    lake.move(10, 15)
    assert lake.offsets() == list(range(15))


def test_columns_added_by_another_engine_are_left_alone(lake: Lake) -> None:
    lake.move(0, 5)
    moved = lake.written(5, 10)  # by the schema of before
    add_columns(lake.catalog, lake.table(), pa.schema([*ENVELOPE, ("note", pa.string())]))
    assert lake.commit(moved).mine == (moved,)
    lake.move(10, 15)  # by the schema of now
    assert lake.offsets() == list(range(15))
    assert lake.table().scan().to_arrow().column("note").null_count == 15


@pytest.mark.parametrize("what", ["more", "other"])
def test_files_written_by_a_partition_spec_of_before_are_found_by_their_rows(lake: Lake, what: str) -> None:
    lake.move(0, 5)
    moved = lake.written(5, 10)
    with lake.table().update_spec() as update:
        update.add_field("_offset", BucketTransform(4), "by_offset")
        if what == "other":
            update.remove_field("_publish_time_day")
    assert lake.commit(moved).mine == (moved,)
    lake.move(10, 15)
    assert lake.offsets() == list(range(15))
    for offset in range(15):
        assert lake.table().scan(row_filter=f"_offset == {offset}").to_arrow().num_rows == 1


def test_metadata_stays_small_over_sixty_commits(lake: Lake) -> None:
    store = lake.store()
    for number in range(60):
        store.commit(lake.name, [lake.written(number, number + 1)], str(uuid.uuid4()), lake.on_wait)
    table = lake.table()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table.io)) <= 21
    assert len(table.metadata.metadata_log) <= 21
    assert lake.offsets() == list(range(60))
    if lake.kind != "rest":  # Nessie writes the metadata itself, keeps no log of it, and has its own clean-up
        assert len(lake.metadata_files()) <= 22


def test_commits_remove_the_snapshots_beyond_the_limit_and_no_row(lake: Lake) -> None:
    lake.snapshots_max = 4
    for start in range(10):
        assert lake.move(start, start + 1).mine
        assert len(lake.table().snapshots()) <= 4
    assert lake.offsets() == list(range(10))
    token = lake.token()
    assert token is not None
    assert token.end == 10
