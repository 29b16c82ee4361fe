"""The cursor: acknowledgements in any order, and what is left of them after a restart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from frazil.broker.delivery.progress import Progress
from frazil.broker.store.progress import restored, stored_form
from frazil.broker.subscriptions.cursor import Cursor


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(0, 60))
def test_it_is_the_end_of_the_contiguous_run(acks: list[int], restart_after: int) -> None:
    cursor, model = Cursor(0), set[int]()
    for number, offset in enumerate(acks):
        assert cursor.ack(offset) is (offset not in model)
        model.add(offset)
        if number == restart_after:
            stored = restored(stored_form(Progress(1, cursor.end, tuple(cursor.above()))), lambda: 2)
            cursor = Cursor(stored.cursor, ((one.start, one.end) for one in stored.done))
        end = next(each for each in range(100) if each not in model)
        assert cursor.end == end
        assert [cursor.is_acked(each) for each in range(50)] == [each in model for each in range(50)]
        above = [offset for each in cursor.above() for offset in range(each.start, each.end)]
        assert above == sorted(each for each in model if each >= end)


def test_what_is_gone_is_passed_over() -> None:
    cursor = Cursor(3)
    cursor.ack(7)
    cursor.finish(3, 6)
    assert cursor.end == 6
    cursor.finish(1, 2)
    assert cursor.end == 6
    cursor.ack(6)
    assert cursor.end == 8
