"""The walk over tiers alone: which tier is asked, what happens at seams, and where nothing is left."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.core.offsets import OffsetRange
from frazil.core.tiers import ContiguousBatches, Extent, Gone, Tier, TierWalk, find_time, first_offset


def rows(start: int, end: int, name: str) -> pa.RecordBatch:
    return pa.record_batch({"_offset": pa.array(range(start, end), pa.int64()), "tier": [name] * (end - start)})


class Shelf:
    """A tier of which a test may take rows at any moment. Offset n was appended at time 10 n."""

    def __init__(self, name: str, start: int, end: int, *, in_memory: bool = False, each: int = 3) -> None:
        self.name, self.start, self.end = name, start, end
        self.is_in_memory = in_memory
        self.each = each
        self.asked: list[OffsetRange] = []
        self.looks = 0

    def may_hold(self, offset: int) -> bool:
        return self.start <= offset < self.end

    def extent(self) -> Extent | None:
        self.looks += 1
        return Extent(self.start, self.end)

    def find(self, time_us: int) -> int | None:
        found = max(self.start, -(-time_us // 10))
        return found if found < self.end else None

    def batches(self, wanted: OffsetRange) -> ContiguousBatches:
        self.asked.append(wanted)
        if not self.may_hold(wanted.start):
            raise Gone(wanted.start)
        return ContiguousBatches(self._batches(wanted), wanted.start)

    def _batches(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        at = wanted.start
        while at < min(wanted.end, self.end):
            if at < self.start:
                raise Gone(at)
            end = min(at + self.each, wanted.end, self.end)
            yield rows(at, end, self.name)
            at = end


def taken(walk: TierWalk) -> list[tuple[int, str]]:
    found = []
    while (batch := walk.step()) is not None:
        found += zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
    return found


def test_the_hottest_tier_that_has_the_next_offset_is_asked() -> None:
    cold, middle, hot = Shelf("cold", 0, 20), Shelf("middle", 8, 20), Shelf("hot", 14, 20)
    found = taken(TierWalk([hot, middle, cold], 0, 20))
    assert [offset for offset, _ in found] == list(range(20))
    assert [name for _, name in found] == ["cold"] * 8 + ["middle"] * 6 + ["hot"] * 6
    assert cold.asked == [OffsetRange(0, 8)]
    assert middle.asked == [OffsetRange(8, 14)]


def test_rows_that_leave_a_tier_are_read_on_in_a_colder_one() -> None:
    cold, hot = Shelf("cold", 0, 20), Shelf("hot", 0, 20)
    walk = TierWalk([hot, cold], 0, 20)
    assert walk.step() is not None
    hot.start = 12
    found = taken(walk)
    assert found == [(offset, "cold" if offset < 12 else "hot") for offset in range(3, 20)]


def test_rows_that_leave_while_the_colder_tier_is_read_are_asked_for_there() -> None:
    cold, hot = Shelf("cold", 0, 20), Shelf("hot", 6, 20)
    walk = TierWalk([hot, cold], 0, 20)
    assert walk.step() is not None
    hot.start = 15
    assert taken(walk) == [(offset, "cold" if offset < 15 else "hot") for offset in range(3, 20)]
    assert cold.asked == [OffsetRange(0, 6), OffsetRange(6, 15)]


def test_an_offset_that_no_tier_has_is_gone_and_the_walk_stays_where_it_is() -> None:
    cold, hot = Shelf("cold", 0, 5), Shelf("hot", 10, 20)
    walk = TierWalk([hot, cold], 4, 20)
    assert walk.step() is not None
    for _ in range(2):
        with pytest.raises(Gone):
            walk.step()
    assert walk.offset == 5
    cold.end = 10
    assert taken(walk)[0] == (5, "cold")


def test_tiers_that_are_not_in_memory_are_not_asked_where_nobody_may_wait() -> None:
    hot, files = Shelf("hot", 10, 20, in_memory=True), Shelf("files", 0, 20)
    walk = TierWalk([hot, files], 8, 20)
    assert walk.step(in_memory_only=True) is None
    assert (files.asked, files.looks) == ([], 0)
    assert walk.step() is not None
    assert walk.offset == 10
    assert walk.step(in_memory_only=True) is not None


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("jump", [-3, -1, 1, 2, 4, 7])
def test_an_offset_that_was_set_from_outside_is_where_it_goes_on(jump: int, in_memory: bool) -> None:
    walk = TierWalk([Shelf("only", 0, 20, in_memory=in_memory)], 0, 20)
    walk.step()
    walk.step()
    walk.offset += jump
    assert [offset for offset, _ in taken(walk)] == list(range(6 + jump, 20))


def test_any_error_but_gone_is_raised_and_what_was_open_is_closed() -> None:
    class Failing(Shelf):
        closed = 0

        def _batches(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
            try:
                yield rows(wanted.start, wanted.start + 1, self.name)
                raise OSError("the disk")
            finally:
                self.closed += 1

    tier = Failing("only", 0, 5)
    walk = TierWalk([tier], 0, 5)
    assert walk.step() is not None
    with pytest.raises(OSError, match="the disk"):
        walk.step()
    assert (walk.offset, tier.closed) == (1, 1)
    assert walk.step() is not None, "asked again, it goes on"


def test_colder_tiers_are_asked_for_a_beginning_only_if_something_may_be_before() -> None:
    cold, hot = Shelf("cold", 3, 12), Shelf("hot", 10, 20)
    assert first_offset([hot, cold], 20) == 3
    assert first_offset([hot, cold], 20, 15) == 10
    assert cold.looks == 1
    assert first_offset([Shelf("hot", 7, 7), Shelf("cold", 0, 0)], 7) == 0
    assert first_offset([], 7) == 7


@given(st.lists(st.integers(0, 30), min_size=2, max_size=4), st.integers(0, 350))
def test_a_time_is_found_in_whatever_tier_it_is(starts: list[int], time_us: int) -> None:
    """Tiers overlap; together they hold everything from the first start on."""
    starts = sorted(starts, reverse=True)
    tiers: list[Tier] = [Shelf(str(start), start, 30) for start in starts]
    expected = max(min(starts), -(-time_us // 10))
    assert find_time(tiers, time_us, 30) == min(expected, 30)


def test_a_walk_that_is_closed_during_a_step_lets_go_when_the_step_ends() -> None:
    """As when a call is cancelled while its thread plans a table: nobody else would close what the step opened."""
    shelf = Shelf("cold", 0, 20)
    walk = TierWalk([shelf], 0, 20)
    opened: list[ContiguousBatches] = []
    usual = shelf.batches

    def cancelled(wanted: OffsetRange) -> ContiguousBatches:
        walk.close()
        opened.append(usual(wanted))
        return opened[0]

    shelf.batches = cancelled  # type: ignore[method-assign]
    assert walk.step() is not None
    assert walk._batches is None
    shelf.batches = usual  # type: ignore[method-assign]
    assert taken(walk)[0] == (3, "cold")


def test_a_walk_that_is_dropped_lets_go() -> None:
    closed: list[bool] = []
    shelf = Shelf("cold", 0, 20)
    walk = TierWalk([shelf], 0, 20)
    assert walk.step() is not None
    assert walk._batches is not None
    walk._batches.close = lambda: closed.append(True)  # type: ignore[method-assign]
    del walk
    assert closed == [True]


def test_a_start_that_moves_during_the_search_for_a_time_hides_no_colder_row() -> None:
    hot, cold = Shelf("hot", 100, 200), Shelf("cold", 0, 100)
    usual = hot.find

    def find(time_us: int) -> int | None:
        found = usual(time_us)
        hot.start = 150  # retention removes rows meanwhile
        return found

    hot.find = find  # type: ignore[method-assign]
    assert find_time([hot, cold], 400, 200) == 40
