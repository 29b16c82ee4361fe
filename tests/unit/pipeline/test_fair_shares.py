"""What groups, such as tenants, get of a tick: equal shares, and the latest first."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.core.offsets import OffsetRange
from frazil.core.settings.lake import WriterSettings
from frazil.pipeline.move.plan import COMMIT_BYTES, MIB, RangeTask, Waiting, cut, flush_bytes, plan

WRITER = WriterSettings(batch_size=10**9, flush_interval_ms=1_000, max_memory_bytes=64 * MIB)
NOW_US = 10**12
PIECE_BYTES = flush_bytes(WRITER)


def waiting(group: str, topic: int, size_mib: int, since_us: int = 0) -> Waiting:
    """Rows of 64 KiB."""
    rows = OffsetRange(0, size_mib * 16)
    return Waiting(f"{group}/{topic}", rows, 65_536.0, since_us, WRITER, (), group)


def chosen(todo: list[Waiting], tick_mib: int, now_us: int = NOW_US) -> list[RangeTask]:
    return [piece for task in plan(todo, now_us, 2, cost_max=tick_mib * MIB) for piece in task]


def costs(pieces: list[RangeTask]) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for log_id in {piece.log_id for piece in pieces}:
        found[log_id.partition("/")[0]] += COMMIT_BYTES
    for piece in pieces:
        found[piece.log_id.partition("/")[0]] += piece.size_bytes
    return found


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 200), st.integers(0, 10**9)), min_size=1, max_size=20),
    st.integers(1, 400),
)
def test_no_group_gets_more_while_another_waits_for_as_much(topics: list[tuple[str, int, int]], tick_mib: int) -> None:
    todo = [waiting(group, at, size, since) for at, (group, size, since) in enumerate(topics)]
    pieces = chosen(todo, tick_mib)
    one_more = PIECE_BYTES + COMMIT_BYTES
    assert pieces
    assert sum(costs(pieces).values()) <= tick_mib * MIB + one_more
    wanted = costs([piece for one in todo for piece in cut(one, 64)])
    got = costs(pieces)
    for group in wanted:
        if got.get(group, 0.0) < wanted[group]:
            assert max(got.values()) <= got.get(group, 0.0) + one_more, f"{group} waits for less"
    for one in todo:
        own = sorted(piece.range for piece in pieces if piece.log_id == one.log_id)
        assert [each.start for each in own] == [one.range.start, *(each.end for each in own[:-1])][: len(own)]


def test_of_more_groups_than_a_tick_serves_the_latest_come_first() -> None:
    todo = [waiting(f"t{at:03}", 0, 1, since_us=at * 1_000) for at in range(100)]
    pieces = chosen(todo, tick_mib=50)
    assert sorted(piece.log_id for piece in pieces) == [f"t{at:03}/0" for at in range(10)]


def test_rows_without_a_tenant_share_by_topic() -> None:
    todo = [Waiting(f"log{at}", OffsetRange(0, 16_000), 65_536.0, 0, WRITER) for at in range(2)]
    pieces = chosen(todo, tick_mib=100)
    sizes = [sum(piece.size_bytes for piece in pieces if piece.log_id == f"log{at}") for at in range(2)]
    assert abs(sizes[0] - sizes[1]) <= PIECE_BYTES


@pytest.mark.parametrize("flood_topics", [1, 30])
def test_a_tenant_that_sends_a_hundred_times_as_much_does_not_delay_the_others(flood_topics: int) -> None:
    """A model of the mover: a tick takes as long as its cost, at 80 MiB/s. 50 tenants send 1 MiB a second in all."""
    others, rate_mib_s, now_us = [f"t{at}" for at in range(50)], 80, 0
    moved_us = dict.fromkeys(others, 0)
    worst_us = 0
    for _ in range(200):
        todo = [
            waiting(name, 0, max(1, (now_us - moved_us[name]) // 50_000_000), since_us=moved_us[name])
            for name in others
            if now_us > moved_us[name]
        ]
        todo += [waiting("flood", at, 4_000 // flood_topics) for at in range(flood_topics)]
        pieces = plan(todo, now_us, 2)
        flat = [piece for task in pieces for piece in task]
        took_us = int(sum(costs(flat).values()) / MIB / rate_mib_s * 1_000_000) + 200_000
        for name in others:
            if any(piece.log_id == f"{name}/0" for piece in flat):
                worst_us = max(worst_us, now_us + took_us - moved_us[name])
                moved_us[name] = now_us
        now_us += took_us
    assert worst_us < 20_000_000
    assert all(now_us - moved_us[name] < 20_000_000 for name in others)
