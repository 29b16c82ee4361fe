"""Rows read from objects: each frame checked, nothing skipped, every problem with the object's name."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

import pytest
from object_rows import EACH, END, numbers

import frazil.objects.reading
from frazil.core.errors import ObjectDamaged, ObjectStoreUnavailable
from frazil.core.stored_objects import StoredObject
from frazil.log.format.frames import MARK_BYTES, pack_mark
from frazil.objects.reading import ObjectReader, first_time_us, name_of
from frazil.objects.store import ObjectStore
from parts.uploading import HandUploader


def values(store: ObjectStore, objects: tuple[StoredObject, ...], start: int) -> list[int]:
    reader = ObjectReader(store, objects, start)
    found: list[int] = []
    for batch in reader:
        assert batch.rows.select(["value", "pad"]).equals(numbers(batch.offset, batch.rows.num_rows))
        found += range(max(start, batch.offset), batch.end)
    reader.close()
    return found


@pytest.mark.parametrize("chunk", [64, 10_000, 4 * 1024 * 1024])
@pytest.mark.parametrize("start", [0, 1, EACH - 1, EACH, 5 * EACH, 100])
def test_rows_are_read_from_any_offset_on(
    uploader: HandUploader, chunk: int, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frazil.objects.reading, "CHUNK_FIRST_BYTES", chunk)
    monkeypatch.setattr(frazil.objects.reading, "CHUNK_MAX_BYTES", chunk)
    held = tuple(one for one in uploader.objects.all() if one.end > start)
    assert values(uploader.store, held, start) == list(range(start, END))


def test_few_chunks_are_requested_ahead_and_none_for_the_first_rows(
    uploader: HandUploader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frazil.objects.reading, "CHUNK_FIRST_BYTES", 30_000)
    monkeypatch.setattr(frazil.objects.reading, "CHUNK_MAX_BYTES", 30_000)
    asked = Counted(uploader.store)
    reader = ObjectReader(asked, uploader.objects.all(), 0)
    next(reader)
    assert asked.ranges == 1
    for _ in range(3):
        next(reader)
    assert 4 <= asked.ranges <= 4 + frazil.objects.reading.AHEAD_MAX + 2
    reader.close()


class Counted:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.ranges = 0

    def get_range(self, *given: Any, **named: Any) -> bytes:
        self.ranges += 1
        return self._store.get_range(*given, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def replaced(uploader: HandUploader, number: int, content: bytes, *, known: bool = True) -> tuple[StoredObject, ...]:
    """Put other bytes in the place of an object. With `known`, size and ETag are those of the new bytes."""
    objects = list(uploader.objects.all())
    one = objects[number]
    uploader.store.delete([name_of(one)])
    etag = uploader.store.create(name_of(one), content)
    if known:
        objects[number] = dataclasses.replace(one, size_bytes=len(content), etag=etag)
    return tuple(objects)


def content_of(uploader: HandUploader, number: int) -> bytes:
    return uploader.store.get(name_of(uploader.objects.all()[number]))


def refused(uploader: HandUploader, objects: tuple[StoredObject, ...], number: int) -> ObjectDamaged:
    """Read until an object is refused; all rows of the objects before it have been returned."""
    bad, found = objects[number], []
    reader = ObjectReader(uploader.store, objects, 0)
    with pytest.raises(ObjectDamaged) as caught:
        found.extend(offset for batch in reader for offset in range(batch.offset, batch.end))
    assert found[: bad.first] == list(range(bad.first))
    assert len(found) < bad.end
    assert caught.value.fields["path"] == name_of(bad)
    assert name_of(bad) in str(caught.value)
    return caught.value


@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("known", [True, False])
def test_a_changed_byte_is_found_wherever_it_is(uploader: HandUploader, number: int, known: bool) -> None:
    content = content_of(uploader, number)
    for at in (3, 17, 300, len(content) // 2, len(content) - MARK_BYTES - 9, len(content) - 20, len(content) - 1):
        changed = bytearray(content)
        changed[at] ^= 0x10
        error = refused(uploader, replaced(uploader, number, bytes(changed), known=known), number)
        assert known or "replaced" in str(error)


@pytest.mark.parametrize("known", [True, False])
def test_a_cut_object_is_refused(uploader: HandUploader, known: bool) -> None:
    content = content_of(uploader, 2)
    for left in (10, 500, len(content) // 2, len(content) - MARK_BYTES, len(content) - 8):
        refused(uploader, replaced(uploader, 2, content[:left], known=known), 2)


def test_a_cut_object_is_refused_even_if_its_etag_is_not_known(uploader: HandUploader) -> None:
    content = content_of(uploader, 2)
    for left in (0, len(content) // 2, len(content) - 8):
        objects = list(replaced(uploader, 2, content[:left], known=False))
        objects[2] = dataclasses.replace(objects[2], etag=None)
        assert "cut" in str(refused(uploader, tuple(objects), 2))


def test_bytes_behind_the_closing_mark_are_refused(uploader: HandUploader) -> None:
    content = content_of(uploader, 2)
    end = uploader.objects.all()[2].end
    refused(uploader, replaced(uploader, 2, content + bytes(64)), 2)
    refused(uploader, replaced(uploader, 2, content[:-MARK_BYTES] + pack_mark(end + 1)), 2)
    objects = replaced(uploader, 2, content + pack_mark(end))
    assert values(uploader.store, objects, 0) == list(range(END)), "a mark more says the same"


def test_a_missing_object_is_named(uploader: HandUploader) -> None:
    uploader.store.delete([name_of(uploader.objects.all()[4])])
    assert "missing" in str(refused(uploader, uploader.objects.all(), 4))


def test_an_object_of_another_log_or_place_is_refused(uploader: HandUploader) -> None:
    assert "begins at offset" in str(refused(uploader, replaced(uploader, 3, content_of(uploader, 4)), 3))
    foreign = tuple(dataclasses.replace(one, log_id="x" + one.log_id[1:]) for one in uploader.objects.all())
    uploader.store.create(name_of(foreign[0]), content_of(uploader, 0))
    assert "belongs to log" in str(refused(uploader, (dataclasses.replace(foreign[0], etag=None),), 0))


def test_a_length_that_exceeds_the_object_is_refused_before_it_is_requested(uploader: HandUploader) -> None:
    content = bytearray(content_of(uploader, 1))
    struct.pack_into("<I", content, 8, 2**31)
    assert "claims" in str(refused(uploader, replaced(uploader, 1, bytes(content)), 1))


def test_a_store_that_is_away_is_told_apart_from_a_damaged_object(uploader: HandUploader) -> None:
    class Away(Counted):
        def get_range(self, name: str, *given: Any, **named: Any) -> bytes:
            raise ObjectStoreUnavailable(name, "no route")

        def head(self, name: str) -> Any:
            raise ObjectStoreUnavailable(name, "no route")

    with pytest.raises(ObjectStoreUnavailable, match="no route"):
        next(ObjectReader(Away(uploader.store), uploader.objects.all(), 0))


def test_the_time_of_the_first_row_is_read_if_it_is_not_known(uploader: HandUploader) -> None:
    for one in uploader.objects.all():
        asked = Counted(uploader.store)
        assert first_time_us(asked, one) == one.first_time_us
        assert asked.ranges == 0
        assert first_time_us(asked, dataclasses.replace(one, first_time_us=None)) == one.first_time_us
        assert asked.ranges == 1
