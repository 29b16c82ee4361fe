"""What the Spark source reads in which task, and how far a batch of a stream goes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.core.offsets import OffsetRange
from frazil.pipeline.source.ranges import Stretch, capped, held_by, packed, split, task_bytes

A, B, C = ("/a/a", 0), ("/a/a", 1), ("/a/b", 0)


def test_a_batch_without_a_limit_takes_all() -> None:
    assert capped({A: 3}, {A: 10, B: 5}, None) == {A: 10, B: 5}


def test_a_batch_takes_of_each_partition_its_share() -> None:
    assert capped({A: 0, B: 0}, {A: 300, B: 100}, 100) == {A: 75, B: 25}


def test_a_limit_below_the_number_of_partitions_still_makes_progress() -> None:
    starts, ends = {A: 0, B: 0, C: 0}, {A: 10, B: 10, C: 10}
    assert sum(capped(starts, ends, 1).values()) == 1


def test_a_small_share_is_not_starved() -> None:
    """One partition always has far more, and gets more all the time."""
    starts, ends = {A: 0, B: 0, C: 0}, {A: 1_000, B: 5, C: 5}
    for limit in (1, 2, 10):
        at = dict(starts)
        for batch in range(60):
            at = capped(at, {**ends, A: 1_000 + limit * batch}, limit)
            if at[B] == at[C] == 5:
                break
        assert at[B] == at[C] == 5, limit
        assert batch < 60 // limit + 5


def test_the_limit_is_kept_where_it_is_smaller_than_the_partitions() -> None:
    many = {("/a/a", number): 0 for number in range(7)}
    at, seen = dict(many), set()
    for _ in range(7):
        after = capped(at, dict.fromkeys(many, 100), 2)
        assert sum(after.values()) - sum(at.values()) == 2
        seen |= {key for key in after if after[key] > at[key]}
        at = after
    assert seen == set(many)
    assert set(at.values()) == {2}


def test_a_log_that_lost_its_end_never_goes_back() -> None:
    assert capped({A: 10, B: 0}, {A: 5, B: 100}, 10) == {A: 10, B: 10}
    assert capped({A: 10}, {A: 5}, None) == {A: 10}


@given(
    st.dictionaries(st.sampled_from([A, B, C]), st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1),
    st.integers(1, 60),
)
def test_a_batch_has_exactly_the_limit_or_all(waiting: dict[tuple[str, int], tuple[int, int]], limit: int) -> None:
    starts = {key: start for key, (start, _) in waiting.items()}
    ends = {key: start + count for key, (start, count) in waiting.items()}
    total = sum(count for _, count in waiting.values())
    found = capped(starts, ends, limit)
    assert sum(found.values()) - sum(starts.values()) == min(limit, total)
    assert all(starts[key] <= found[key] <= ends[key] for key in found)


def test_small_neighbours_share_a_task_and_large_ones_are_cut() -> None:
    stretches = [
        Stretch(OffsetRange(0, 10), 40),
        Stretch(OffsetRange(10, 20), 40),
        Stretch(OffsetRange(20, 30), 40),
        Stretch(OffsetRange(30, 60), 300),
        Stretch(OffsetRange(70, 80), 10),
    ]
    assert packed(stretches, 100) == [
        OffsetRange(0, 20),
        OffsetRange(20, 30),
        OffsetRange(30, 40),
        OffsetRange(40, 50),
        OffsetRange(50, 60),
        OffsetRange(70, 80),
    ]


def test_a_range_is_cut_into_no_more_pieces_than_it_has_rows() -> None:
    assert split(OffsetRange(5, 8), 10) == [OffsetRange(5, 6), OffsetRange(6, 7), OffsetRange(7, 8)]


def test_tasks_are_smaller_where_more_are_wanted() -> None:
    assert task_bytes(1_000, 10) == 100
    assert task_bytes(1e12, None) == 64 * 1024 * 1024


@pytest.mark.parametrize(
    ("wanted", "bases"),
    [(OffsetRange(0, 5), [0]), (OffsetRange(10, 20), [10]), (OffsetRange(9, 21), [0, 10, 20])],
)
def test_only_the_segments_of_a_range_are_asked_for(wanted: OffsetRange, bases: list[int]) -> None:
    files = [(base, Path(f"{base}.wal")) for base in (0, 10, 20)]
    assert [base for base, _ in held_by(files, wanted)] == bases
