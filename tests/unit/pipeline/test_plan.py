"""What is moved next: a pure decision."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from frazil.core.offsets import OffsetRange
from frazil.core.settings.lake import WriterSettings
from frazil.pipeline.move.plan import TASK_SHARE, RangeTask, Waiting, cut, flush_bytes, is_due, pack, plan

MIB = 1024 * 1024
WRITER = WriterSettings(batch_size=1_000, flush_interval_ms=5_000, max_memory_bytes=4 * MIB)


def waiting(start: int, end: int, bytes_per_row: float = 100.0, since_us: int = 0, log_id: str = "log") -> Waiting:
    return Waiting(log_id, OffsetRange(start, end), bytes_per_row, since_us, WRITER)


def test_whichever_comes_first_makes_a_topic_due() -> None:
    assert not is_due(waiting(0, 999), now_us=4_999_999)
    assert is_due(waiting(0, 1_000), now_us=0)
    assert is_due(waiting(0, 1), now_us=5_000_000)
    assert is_due(waiting(0, 4, bytes_per_row=MIB), now_us=0)


def test_rows_from_before_the_clock_was_set_back_are_due_at_once() -> None:
    """Else they would wait for as many hours as the clock was wrong."""
    hour_us = 3_600_000_000
    assert not is_due(waiting(0, 1, since_us=hour_us), now_us=hour_us)
    assert is_due(waiting(0, 1, since_us=hour_us), now_us=hour_us - 1)
    assert is_due(waiting(0, 1, since_us=5 * hour_us), now_us=hour_us)


def test_a_range_is_cut_so_that_each_piece_fits_the_memory_of_a_task() -> None:
    pieces = cut(waiting(10, 100_010, bytes_per_row=1_000), ranges_max=1_000)
    assert [piece.range.start for piece in pieces] == [10, *(piece.range.end for piece in pieces[:-1])]
    assert pieces[-1].range.end == 100_010
    assert all(piece.size_bytes <= WRITER.max_memory_bytes / TASK_SHARE for piece in pieces)


def test_what_is_too_much_for_one_tick_waits_and_the_oldest_goes_first() -> None:
    pieces = cut(waiting(0, 10**9, bytes_per_row=1_000), ranges_max=3)
    assert len(pieces) == 3
    assert pieces[0].range.start == 0


def test_a_row_larger_than_the_memory_of_a_task_is_moved_alone() -> None:
    pieces = cut(waiting(0, 3, bytes_per_row=100 * MIB), ranges_max=10)
    assert [len(piece.range) for piece in pieces] == [1, 1, 1]


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 2_000)), min_size=1, max_size=60), st.integers(1, 8))
def test_packing_keeps_every_range_once_and_tasks_even(sizes: list[tuple[int, int]], tasks: int) -> None:
    ranges = [RangeTask(f"log{index}", OffsetRange(0, rows), float(size)) for index, (rows, size) in enumerate(sizes)]
    packed = pack(ranges, tasks)
    flat = [piece for task in packed for piece in task]
    assert sorted(flat, key=repr) == sorted(ranges, key=repr)
    assert all(packed)
    loads = [sum(piece.size_bytes + 1 for piece in task) for task in packed]
    assert max(loads) - min(loads) <= max(piece.size_bytes + 1 for piece in ranges)


def test_nothing_due_is_no_job_unless_all_is_asked_for() -> None:
    some = [waiting(0, 5)]
    assert plan(some, now_us=0, tasks=4) == []
    assert [len(task) for task in plan(some, now_us=0, tasks=4, all_of_it=True)] == [1]


def test_small_topics_share_tasks() -> None:
    many = [waiting(0, 5, log_id=f"log{index}") for index in range(500)]
    packed = plan(many, now_us=5_000_000, tasks=4, cost_max=math.inf)
    assert [len(task) for task in packed] == [125] * 4


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(1, 10**6), st.floats(0.1, 10 * MIB), st.integers(4, 64)),
        min_size=1,
        max_size=20,
    ),
    st.integers(1, 8),
    st.integers(1, 20),
)
def test_a_plan_takes_each_log_from_its_oldest_row_on_without_gap_or_double(
    logs: list[tuple[int, int, float, int]], tasks: int, ranges_max: int
) -> None:
    todo = {
        f"log{at}": Waiting(
            f"log{at}", OffsetRange(start, start + rows), size, 0, WriterSettings(max_memory_bytes=memory * MIB)
        )
        for at, (start, rows, size, memory) in enumerate(logs)
    }
    packed = plan(list(todo.values()), now_us=10**12, tasks=tasks, ranges_max=ranges_max, cost_max=math.inf)
    assert len(packed) <= tasks
    for log_id, one in todo.items():
        pieces = sorted(
            (piece for task in packed for piece in task if piece.log_id == log_id), key=lambda piece: piece.range.start
        )
        assert 0 < len(pieces) <= ranges_max
        assert pieces[0].range.start == one.range.start
        assert all(left.range.end == right.range.start for left, right in itertools.pairwise(pieces))
        assert pieces[-1].range.end == one.range.end or len(pieces) == ranges_max
        assert all(piece.size_bytes <= flush_bytes(one.writer) or len(piece.range) == 1 for piece in pieces)


def test_a_topics_own_knobs_make_it_due() -> None:
    patient = Waiting("log", OffsetRange(0, 10), 100.0, 0, WriterSettings(batch_size=100, flush_interval_ms=60_000))
    eager = Waiting("log", OffsetRange(0, 10), 100.0, 0, WriterSettings(batch_size=10))
    assert not is_due(patient, now_us=59_999_999)
    assert is_due(patient, now_us=60_000_000)
    assert is_due(eager, now_us=0)
