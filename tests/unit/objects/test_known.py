"""A log's objects are found by their manifests or by a listing, whatever a crash has left."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from object_rows import EACH, END

from frazil.core.errors import ObjectDamaged, ObjectStoreUnavailable
from frazil.core.offsets import OffsetRange
from frazil.core.settings import make_settings
from frazil.core.stored_objects import StoredObject
from frazil.log.format.frames import pack_mark
from frazil.meta.sqlite import SqliteStore
from frazil.objects.epoch import EpochClaim, begin_epoch
from frazil.objects.known import ObjectsOfLogs
from frazil.objects.loading import load_objects, read_head
from frazil.objects.manifests import Manifests, manifest_key
from frazil.objects.names import ObjectName
from frazil.objects.opening import open_objects
from frazil.objects.packing import Fence, pack_fence
from frazil.objects.reading import ObjectReader, name_of
from frazil.objects.store import ObjectStore
from frazil.testing import FakeClock
from parts.uploading import HandUploader


@pytest.fixture
def meta(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "meta.db")
    yield store
    store.close()


@pytest.fixture
def manifests(meta: SqliteStore, uploader: HandUploader) -> Manifests:
    made = Manifests(meta)
    made.put(uploader.objects.all())
    return made


class Requests:
    """Counts what is asked of a store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.asked: list[str] = []

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
        self.asked.append(name)
        return getattr(self._store, name)


def log_of(uploader: HandUploader) -> str:
    return uploader.log.log_id


def ends(objects: tuple[StoredObject, ...]) -> list[tuple[int, int, int]]:
    return [(one.epoch, one.first, one.end) for one in objects]


def put_fence(store: ObjectStore, log_id: str, epoch: int, at: int, *, first: int | None = None) -> None:
    fence = Fence(epoch + 1, "b2", at if first is None else first, f"claim {epoch}", "http://b2:80")
    store.create(str(ObjectName(log_id, epoch, at)), pack_fence(at, fence))


def drop(uploader: HandUploader, *numbers: int) -> list[StoredObject]:
    gone = [uploader.objects.all()[number] for number in numbers]
    uploader.store.delete(name_of(one) for one in gone)
    return gone


def test_a_listing_alone_finds_the_objects_with_their_ends(uploader: HandUploader) -> None:
    found = load_objects(uploader.store, log_of(uploader), None)
    assert ends(found.objects) == ends(uploader.objects.all())
    assert (found.epoch, found.end, found.owner) == (1, END, None)
    assert found.unrecorded == found.objects
    assert [one.size_bytes for one in found.objects] == [one.size_bytes for one in uploader.objects.all()]
    reader = ObjectReader(uploader.store, found.objects, 0)
    assert sum(batch.rows.num_rows for batch in reader) == END


def test_manifests_save_all_requests_but_one(uploader: HandUploader, manifests: Manifests) -> None:
    store = Requests(uploader.store)
    found = load_objects(store, log_of(uploader), manifests)
    assert found.objects == uploader.objects.all()
    assert found.unrecorded == ()
    assert store.asked == ["walk"]


def test_objects_that_have_no_manifest_yet_are_found_behind_those_that_have(
    uploader: HandUploader, manifests: Manifests
) -> None:
    newest = uploader.objects.all()[-3:]
    manifests.remove(newest)
    found = load_objects(uploader.store, log_of(uploader), manifests)
    assert ends(found.objects) == ends(uploader.objects.all())
    assert ends(found.unrecorded) == ends(newest)
    manifests.put(found.unrecorded)
    assert load_objects(uploader.store, log_of(uploader), manifests).unrecorded == ()


@pytest.mark.parametrize("lost", [slice(None), slice(2, 4)])
def test_manifests_that_were_lost_are_made_again_from_a_listing(
    uploader: HandUploader, manifests: Manifests, lost: slice
) -> None:
    gone = uploader.objects.all()[lost]
    manifests.remove(gone)
    found = load_objects(uploader.store, log_of(uploader), manifests)
    assert ends(found.objects) == ends(uploader.objects.all())
    assert ends(found.unrecorded) == ends(gone)


def test_a_damaged_manifest_counts_as_missing(
    uploader: HandUploader, manifests: Manifests, meta: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    second, third = uploader.objects.all()[1:3]
    meta.put_all({manifest_key(second): b"{", manifest_key(third): json.dumps({"end": third.end}).encode()})
    found = load_objects(uploader.store, log_of(uploader), manifests)
    assert ends(found.unrecorded) == ends((second, third))
    assert manifest_key(second) in caplog.text


def test_the_first_objects_are_found_though_only_later_ones_have_a_manifest(
    uploader: HandUploader, manifests: Manifests
) -> None:
    """A metadata store was restored from a backup of before, and the owner has stored manifests since."""
    gone = uploader.objects.all()[:3]
    manifests.remove(gone)
    found = load_objects(uploader.store, log_of(uploader), manifests)
    assert ends(found.objects) == ends(uploader.objects.all())
    assert ends(found.unrecorded) == ends(gone)


def test_the_last_object_of_an_epoch_is_found_though_the_next_epoch_has_manifests(
    uploader: HandUploader, manifests: Manifests
) -> None:
    lost = uploader.objects.all()[-1]
    put_fence(uploader.store, log_of(uploader), 1, END)
    uploader.epoch = 2
    uploader.log.append_batch(rows_of(uploader), 100)
    uploader.upload()
    manifests.put(uploader.objects.all())
    manifests.remove([lost])
    found = load_objects(uploader.store, log_of(uploader), manifests)
    assert ends(found.objects) == ends(uploader.objects.all())
    assert ends(found.unrecorded) == ends((lost,))


def test_retention_and_fences_below_the_first_manifest_miss_nothing(
    uploader: HandUploader, manifests: Manifests
) -> None:
    put_fence(uploader.store, log_of(uploader), 0, 0)
    manifests.remove(drop(uploader, 0, 1))
    store = Requests(uploader.store)
    found = load_objects(store, log_of(uploader), manifests)
    assert found.objects == uploader.objects.all()[2:]
    assert store.asked == ["walk", "get", "walk"]


def test_a_missing_newest_object_with_a_manifest_is_refused_when_other_manifests_are_lost(
    uploader: HandUploader, manifests: Manifests
) -> None:
    manifests.remove(uploader.objects.all()[1:2])
    (gone,) = drop(uploader, -1)
    with pytest.raises(ObjectDamaged, match="manifest") as caught:
        load_objects(uploader.store, log_of(uploader), manifests)
    assert caught.value.fields["path"] == name_of(gone)


@pytest.mark.parametrize("proven", [True, False])
def test_manifests_of_an_older_backup_are_passed_over_if_later_objects_prove_that_theirs_were_stored(
    uploader: HandUploader, manifests: Manifests, proven: bool
) -> None:
    """Retention has removed all objects that they name. Of another store nothing tells that it had them."""
    put_fence(uploader.store, log_of(uploader), 0, 0)
    manifests.remove(uploader.objects.all()[3:])
    gone = drop(uploader, 0, 1, 2)
    if proven:
        add_object(uploader, stored=END)
        found = load_objects(uploader.store, log_of(uploader), manifests)
        assert ends(found.objects) == ends(uploader.objects.all()[3:])
        assert found.unrecorded == found.objects
        known = ObjectsOfLogs(uploader.store, manifests).of(log_of(uploader))
        begin_epoch(known, "/shop/orders", EpochClaim("b2"), FakeClock())
        assert ends(tuple(manifests.of(log_of(uploader)))) == ends(found.objects)
    else:
        with pytest.raises(ObjectDamaged, match="manifest") as caught:
            load_objects(uploader.store, log_of(uploader), manifests)
        assert caught.value.fields["path"] == name_of(gone[-1])


def test_a_log_that_was_never_uploaded_has_no_objects_and_is_listed_once(store: ObjectStore) -> None:
    asked = Requests(store)
    known = ObjectsOfLogs(asked).of("a-log")
    assert known.now() is None
    assert known.load().all() == ()
    assert known.now() is known.load()
    assert asked.asked == ["walk"]
    found = load_objects(store, "a-log", None)
    assert (found.epoch, found.end, found.owner) == (0, 0, None)


def test_names_of_others_in_the_store_are_left_alone(uploader: HandUploader) -> None:
    for name in (
        f"{log_of(uploader)}/notes",
        f"{log_of(uploader)}/00000001/1",
        f"{log_of(uploader)}-2/00000001/{0:020d}",
    ):
        uploader.store.create(name, b"x")
    assert ends(load_objects(uploader.store, log_of(uploader), None).objects) == ends(uploader.objects.all())


def test_an_object_missing_between_others_is_refused_by_its_name(uploader: HandUploader) -> None:
    add_object(uploader, stored=END)
    (gone,) = drop(uploader, 3)
    with pytest.raises(ObjectDamaged, match="missing") as caught:
        load_objects(uploader.store, log_of(uploader), None)
    assert caught.value.fields["path"] == name_of(gone)


def test_an_object_missing_between_others_is_refused_when_it_is_read_by_its_manifest(
    uploader: HandUploader, manifests: Manifests
) -> None:
    (gone,) = drop(uploader, 3)
    found = load_objects(uploader.store, log_of(uploader), manifests)
    with pytest.raises(ObjectDamaged, match="missing") as caught:
        list(ObjectReader(uploader.store, found.objects, 0))
    assert caught.value.fields["path"] == name_of(gone)


def add_object(uploader: HandUploader, *, stored: int, behind: int = 0) -> None:
    """Add an object with two batches behind the others, or further behind."""
    uploader.log.append_batch(rows_of(uploader), 100)
    uploader.log.append_batch(rows_of(uploader), 100)
    uploader.stored = stored
    uploader.upload()
    if behind:
        uploader.store.delete([name_of(uploader.objects.all()[-behind])])


def rows_of(uploader: HandUploader):  # type: ignore[no-untyped-def]
    from object_rows import numbers

    return numbers(uploader.log.durable_end)


def test_objects_behind_a_hole_of_a_crash_do_not_count(uploader: HandUploader) -> None:
    add_object(uploader, stored=END)
    add_object(uploader, stored=END, behind=2)
    found = load_objects(uploader.store, log_of(uploader), None)
    assert found.end == END
    assert ends(found.objects) == ends(uploader.objects.all()[:-2])


def test_objects_that_retention_removed_from_the_beginning_are_not_missed(uploader: HandUploader) -> None:
    drop(uploader, 0, 1)
    found = load_objects(uploader.store, log_of(uploader), None)
    assert ends(found.objects) == ends(uploader.objects.all()[2:])


@pytest.mark.parametrize("size", [0, 10, -8, -40])
def test_a_cut_object_is_refused_by_its_name(uploader: HandUploader, size: int) -> None:
    one = uploader.objects.all()[2]
    content = uploader.store.get(name_of(one))
    uploader.store.delete([name_of(one)])
    uploader.store.create(name_of(one), content[:size])
    with pytest.raises(ObjectDamaged) as caught:
        load_objects(uploader.store, log_of(uploader), None)
    assert caught.value.fields["path"] == name_of(one)


def test_an_object_that_ends_inside_the_next_is_refused(uploader: HandUploader) -> None:
    one, following = uploader.objects.all()[2:4]
    content = uploader.store.get(name_of(one))
    uploader.store.delete([name_of(one)])
    uploader.store.create(name_of(one), content + pack_mark(one.end + EACH))
    with pytest.raises(ObjectDamaged, match="begins before offset") as caught:
        load_objects(uploader.store, log_of(uploader), None)
    assert caught.value.fields["path"] == name_of(following)


class TestFences:
    def test_a_fence_ends_its_epoch_and_names_the_next(self, uploader: HandUploader) -> None:
        put_fence(uploader.store, log_of(uploader), 1, END)
        found = load_objects(uploader.store, log_of(uploader), None)
        assert (found.epoch, found.end) == (2, END)
        assert found.owner is not None
        assert (found.owner.owner, found.owner.address) == ("b2", "http://b2:80")
        assert ends(found.objects) == ends(uploader.objects.all())

    def test_the_first_fence_says_where_the_log_begins(self, store: ObjectStore) -> None:
        put_fence(store, "a-log", 0, 0, first=30)
        found = load_objects(store, "a-log", None)
        assert (found.epoch, found.end, found.objects) == (1, 30, ())

    def test_epochs_without_objects_are_passed(self, uploader: HandUploader, manifests: Manifests) -> None:
        for epoch in (1, 2, 3):
            put_fence(uploader.store, log_of(uploader), epoch, END)
        for known in (None, manifests):
            found = load_objects(uploader.store, log_of(uploader), known)
            assert (found.epoch, found.end) == (4, END)
            assert ends(found.objects) == ends(uploader.objects.all())

    @pytest.mark.parametrize("known", [True, False])
    def test_late_objects_of_a_former_owner_are_never_read(
        self, uploader: HandUploader, manifests: Manifests, known: bool
    ) -> None:
        add_object(uploader, stored=END)
        late = uploader.objects.all()[-1]
        content = uploader.store.get(name_of(late))
        uploader.store.delete([name_of(late)])
        put_fence(uploader.store, log_of(uploader), 1, END)
        behind = str(ObjectName(log_of(uploader), 1, END + EACH))
        uploader.store.create(behind, content)  # travelled behind the object that the fence refused
        found = load_objects(uploader.store, log_of(uploader), manifests if known else None)
        assert (found.epoch, found.end) == (2, END)
        assert max(one.end for one in found.objects) == END

    def test_an_accepted_loss_is_a_gap_between_epochs(self, uploader: HandUploader) -> None:
        put_fence(uploader.store, log_of(uploader), 1, END, first=END + 5 * EACH)
        found = load_objects(uploader.store, log_of(uploader), None)
        assert (found.epoch, found.end) == (2, END + 5 * EACH)
        assert ends(found.objects) == ends(uploader.objects.all())

    def test_an_object_without_rows_that_is_no_fence_is_refused(self, uploader: HandUploader) -> None:
        name = str(ObjectName(log_of(uploader), 1, END))
        first = uploader.objects.all()[0]
        head = read_head(uploader.store, first)[:200]
        uploader.store.create(name, head + pack_mark(END))
        with pytest.raises(ObjectDamaged, match="no valid fence") as caught:
            load_objects(uploader.store, log_of(uploader), None)
        assert caught.value.fields["path"] == name


def test_an_object_that_is_removed_during_the_loading_is_no_damage(uploader: HandUploader) -> None:
    class Removing(Requests):
        def get_range(self, *given, **named):  # type: ignore[no-untyped-def]
            drop(uploader, 0, 1)  # retention, from another thread
            return self._store.get_range(*given, **named)

    found = load_objects(Removing(uploader.store), log_of(uploader), None)
    assert ends(found.objects) == ends(uploader.objects.all()[2:])


def test_a_failed_loading_is_tried_again_by_the_next_call(uploader: HandUploader) -> None:
    class Failing(Requests):
        fails = True

        def walk(self, *given):  # type: ignore[no-untyped-def]
            if self.fails:
                raise ObjectStoreUnavailable("a-log/", "503")
            return self._store.walk(*given)

    store = Failing(uploader.store)
    known = ObjectsOfLogs(store).of(log_of(uploader))
    with pytest.raises(ObjectStoreUnavailable):
        known.load()
    assert known.now() is None
    store.fails = False
    assert known.load().covering(OffsetRange(0, END)) == known.load().all()


def test_a_refresh_finds_what_another_process_uploaded_since(uploader: HandUploader) -> None:
    known = ObjectsOfLogs(uploader.store).of(log_of(uploader))
    assert known.load().end == END
    add_object(uploader, stored=END)
    assert known.load().end == END
    assert known.refresh().end == known.load().end == END + 2 * EACH


def test_objects_of_a_folder_are_listed_in_order(uploader: HandUploader, tmp_path: Path) -> None:
    folder = {"type": "local", "path": str(tmp_path / "objects")}
    store = open_objects(make_settings({"objects": {"enabled": True, "store": folder}}))
    for one in reversed(uploader.objects.all()):
        store.create(name_of(one), uploader.store.get(name_of(one)))
    put_fence(store, log_of(uploader), 1, END)
    found = load_objects(store, log_of(uploader), None)
    assert ends(found.objects) == ends(uploader.objects.all())
    assert found.epoch == 2
    forgotten = ObjectsOfLogs(store)
    first = forgotten.of(log_of(uploader))
    forgotten.forget(log_of(uploader))
    assert forgotten.of(log_of(uploader)) is not first
    assert dataclasses.replace(found.objects[0], etag=None).range == OffsetRange(0, found.objects[0].end)
