"""What an owner knows of the objects of a log, however many there are."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.core.offsets import OffsetRange
from frazil.core.stored_objects import StoredObject
from frazil.log.info import covering
from frazil.objects.log_objects import LogObjects

MANY = 200_000


def objects(count: int, start: int = 0) -> list[StoredObject]:
    """Contiguous objects of three rows each."""
    return [StoredObject("a-log", 1, first, first + 3, 100) for first in range(start, start + 3 * count, 3)]


def test_an_object_is_added_as_fast_to_many_as_to_few() -> None:
    def seconds(known: int) -> float:
        log, added = LogObjects("a-log", 1, objects(known)), objects(200, 3 * known)
        start = time.perf_counter()
        for one in added:
            log.add(one)
            assert log.end == one.end
        return time.perf_counter() - start

    few = min(seconds(10) for _ in range(5))
    many = min(seconds(MANY) for _ in range(3))
    assert many < 20 * few  # it took ten thousand times as long when each copied all


def test_an_object_that_does_not_follow_is_refused() -> None:
    log = LogObjects("a-log", 1, objects(2))
    with pytest.raises(AssertionError):
        log.add(StoredObject("a-log", 1, 7, 9, 100))
    log.add(StoredObject("a-log", 2, 7, 9, 100))  # a loss was accepted between epochs
    assert log.covering(OffsetRange(0, 9)) == tuple(objects(2))


@given(st.integers(0, 12), st.lists(st.integers(0, 45), max_size=6), st.integers(0, 8), st.integers(0, 45))
def test_it_holds_what_was_added_and_not_removed(known: int, removed: list[int], added: int, offset: int) -> None:
    log, model = LogObjects("a-log", 1, objects(known)), objects(known)
    for below in removed:
        gone = [one for one in model if one.end <= below]
        assert log.remove_below(below) == tuple(gone)
        model = model[len(gone) :]
    for one in objects(added, model[-1].end if model else 60):
        log.add(one)
        model.append(one)
    assert log.all() == tuple(model)
    assert (log.count, log.size_bytes) == (len(model), 100 * len(model))
    assert (log.start, log.end) == ((model[0].first, model[-1].end) if model else (0, 0))
    assert log.last == (model[-1] if model else None)
    assert log.at(offset) == next((one for one in model if one.first <= offset < one.end), None)
    for end in (offset + 1, offset + 10, offset + 100):
        wanted = OffsetRange(offset, end)
        held = tuple(one for one in model if one.first < end and one.end > offset) if log.at(offset) else ()
        assert log.covering(wanted) == covering(model, wanted) == held
