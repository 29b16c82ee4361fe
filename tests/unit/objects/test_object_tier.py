"""The tier alone: which rows it has, from which time on, and what it says when they leave it."""

from __future__ import annotations

import dataclasses

import pytest
from object_rows import EACH, END

from frazil.core.errors import ObjectDamaged
from frazil.core.offsets import OffsetRange
from frazil.core.tiers import OFFSET_MAX, Extent, Gone
from frazil.objects.log_objects import LogObjects
from frazil.objects.reading import name_of
from frazil.objects.tier import ObjectTier
from parts.uploading import HandUploader


@pytest.fixture
def tier(uploader: HandUploader) -> ObjectTier:
    return ObjectTier(lambda: uploader.store, uploader, lambda: uploader.log.schema)


def offsets(tier: ObjectTier, start: int, end: int) -> list[int]:
    batches = tier.batches(OffsetRange(start, end))
    found = [offset for batch in batches for offset in batch.column("_offset").to_pylist()]
    assert batches.offset == (found[-1] + 1 if found else start)
    return found


def forget_times(uploader: HandUploader) -> None:
    """As objects are known that were found in the store."""
    known = [dataclasses.replace(one, first_time_us=None, last_time_us=None) for one in uploader.objects.all()]
    uploader.objects = LogObjects(uploader.log.log_id, uploader.epoch, known)


@pytest.mark.parametrize(("start", "end"), [(0, END), (3, 4), (EACH, 2 * EACH), (30, 200), (END - 1, OFFSET_MAX)])
def test_it_returns_exactly_the_range_as_far_as_it_has_it(tier: ObjectTier, start: int, end: int) -> None:
    assert offsets(tier, start, end) == list(range(start, min(end, END)))


def test_it_knows_what_it_holds(tier: ObjectTier, uploader: HandUploader) -> None:
    assert tier.extent() == Extent(0, END)
    assert tier.may_hold(0)
    assert not tier.may_hold(END)
    first = uploader.objects.all()[2].first
    uploader.objects.remove_below(first)
    assert tier.extent() == Extent(first, END)
    assert not tier.may_hold(first - 1)
    with pytest.raises(Gone):
        tier.batches(OffsetRange(first - 1, END))
    uploader.objects = LogObjects(uploader.log.log_id, 1)
    assert tier.extent() is None
    assert tier.find(0) is None
    with pytest.raises(Gone):
        tier.batches(OffsetRange(0, 1))


@pytest.mark.parametrize("known", [True, False])
def test_a_time_names_the_first_row_at_it_or_later(tier: ObjectTier, uploader: HandUploader, known: bool) -> None:
    times = [
        time
        for batch in tier.batches(OffsetRange(0, END))
        for time in batch.column("_append_time").cast("int64").to_pylist()
    ]
    assert len(set(times)) == END // EACH
    if not known:
        forget_times(uploader)
    for offset in range(0, END, EACH):
        assert tier.find(times[offset]) == offset
        assert tier.find(times[offset] - 1) == offset
        assert tier.find(times[offset] + 1) == (offset + EACH if offset + EACH < END else None)


def test_rows_that_retention_removes_while_they_are_read_are_gone(tier: ObjectTier, uploader: HandUploader) -> None:
    batches = tier.batches(OffsetRange(0, END))
    assert next(batches).num_rows == EACH
    going = uploader.objects.remove_below(uploader.objects.all()[5].first)
    uploader.store.delete([name_of(one) for one in going])
    with pytest.raises(Gone) as gone:
        next(batches)
    assert gone.value.offset == batches.offset == EACH


def test_rows_that_are_missing_without_having_been_removed_are_damaged(
    tier: ObjectTier, uploader: HandUploader
) -> None:
    one = uploader.objects.all()[3]
    assert one.first_time_us is not None
    uploader.store.delete([name_of(one)])
    with pytest.raises(ObjectDamaged, match=name_of(one)):
        offsets(tier, one.first, one.end)
    forget_times(uploader)
    with pytest.raises(ObjectDamaged, match=name_of(one)):
        tier.find(one.first_time_us + 1)


def test_it_has_what_was_uploaded_since_it_was_made(tier: ObjectTier, uploader: HandUploader) -> None:
    whole = uploader.objects.all()
    uploader.objects = LogObjects(uploader.log.log_id, 1, whole[:4])
    batches = tier.batches(OffsetRange(0, END))
    assert sum(batch.num_rows for batch in batches) == whole[3].end
    for one in whole[4:]:
        uploader.objects.add(one)
    assert offsets(tier, batches.offset, END) == list(range(whole[3].end, END))
