"""The store decides who may put the next objects of a log, whatever anybody believes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from frazil.core.errors import LogFenced, MetadataUnavailable, ObjectDamaged, ObjectStoreUnavailable
from frazil.core.offsets import OffsetRange
from frazil.core.settings import SyncMode, make_settings
from frazil.log.format.frames import SegmentHead
from frazil.meta.sqlite import SqliteStore
from frazil.objects.epoch import Epoch, EpochClaim, begin_epoch
from frazil.objects.known import ObjectsOfLogs
from frazil.objects.loading import load_objects
from frazil.objects.log_objects import LogObjects
from frazil.objects.manifests import Manifests
from frazil.objects.names import ObjectName
from frazil.objects.opening import open_objects
from frazil.objects.packing import pack_object, unpack_fence
from frazil.objects.store import ObjectStore
from frazil.testing import FakeClock

LOG, TOPIC = "a-log", "/shop/readings"
HEAD = SegmentHead(LOG, TOPIC, SyncMode.ALWAYS, pa.schema([("value", pa.int64())]))
HERE, THERE = EpochClaim("b1", "http://b1:80"), EpochClaim("b2", "http://b2:80")


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    where = {"memory": {"bucket": str(tmp_path)}, "local": {"path": str(tmp_path / "objects")}}[request.param]
    return open_objects(make_settings({"objects": {"enabled": True, "store": {"type": request.param, **where}}}))


@pytest.fixture
def meta(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "meta.db")
    yield store
    store.close()


def begun(store: ObjectStore, claim: EpochClaim, manifests: Manifests | None = None, first: int | None = None) -> Epoch:
    """Begin an epoch as another process does, which knows nothing of the objects yet."""
    return begin_epoch(ObjectsOfLogs(store, manifests).of(LOG), TOPIC, claim, FakeClock(), first=first)


def content(first: int, end: int, stored: int = 0, frame: bytes = b"") -> bytes:
    return b"".join(bytes(part) for part in pack_object(first, end, HEAD, b"", [frame], stored=stored))


def put(epoch: Epoch, first: int, end: int) -> None:
    epoch.put(first, end, content(first, end, epoch.end), None, None)


def ends(store: ObjectStore, manifests: Manifests | None = None) -> list[tuple[int, int, int]]:
    return [(one.epoch, one.first, one.end) for one in load_objects(store, LOG, manifests).objects]


def names(store: ObjectStore) -> list[str]:
    return [info.name.removeprefix(f"{LOG}/") for info in store.walk(f"{LOG}/")]


class Unsure:
    """A store that applies a write, or does not, and says neither."""

    def __init__(self, store: ObjectStore, *, applies: bool) -> None:
        self._store = store
        self.applies = applies
        self.fails = 1

    def create(self, name: str, content: bytes) -> str | None:
        if not self.fails:
            return self._store.create(name, content)
        self.fails -= 1
        if self.applies:
            self._store.create(name, content)
        raise ObjectStoreUnavailable(name, "no answer")

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
        return getattr(self._store, name)


def test_an_epoch_begins_with_a_fence_that_names_its_owner_and_the_topic(store: ObjectStore) -> None:
    epoch = begun(store, HERE)
    assert (epoch.number, epoch.first, epoch.end) == (1, 0, 0)
    assert names(store) == [f"{0:08d}/{0:020d}"]
    fence = unpack_fence(store.get(str(ObjectName(LOG, 0, 0))))
    assert fence is not None
    assert (fence.owner, fence.address, fence.topic, fence.claim) == ("b1", "http://b1:80", TOPIC, HERE.token)


def test_objects_of_an_epoch_follow_each_other_and_have_manifests(store: ObjectStore, meta: SqliteStore) -> None:
    manifests = Manifests(meta)
    epoch = begun(store, HERE, manifests)
    put(epoch, 0, 10)
    put(epoch, 10, 30)
    assert epoch.end == epoch.objects.end == 30
    assert ends(store) == ends(store, manifests) == [(1, 0, 10), (1, 10, 30)]
    assert manifests.of(LOG) == list(epoch.objects.all())
    assert all(one.crc is not None for one in manifests.of(LOG))


def test_a_log_that_begins_later_is_uploaded_from_there(store: ObjectStore) -> None:
    epoch = begun(store, HERE, first=70)
    put(epoch, 70, 80)
    assert ends(store) == [(1, 70, 80)]
    assert begun(store, THERE).end == 80


def test_objects_count_in_order_of_their_offsets(store: ObjectStore, meta: SqliteStore) -> None:
    manifests = Manifests(meta)
    epoch = begun(store, HERE, manifests)
    put(epoch, 20, 30)
    put(epoch, 10, 20)
    assert (epoch.end, epoch.objects.all(), manifests.of(LOG)) == (0, (), [])
    put(epoch, 0, 10)
    assert epoch.end == 30
    assert [one.first for one in epoch.objects.all()] == [one.first for one in manifests.of(LOG)] == [0, 10, 20]


def test_a_former_owner_that_wakes_up_is_refused_for_good(store: ObjectStore) -> None:
    former = begun(store, HERE)
    put(former, 0, 10)
    owner = begun(store, THERE)
    assert (owner.number, owner.end) == (2, 10)
    put(owner, 10, 15)
    for _ in range(2):
        with pytest.raises(LogFenced, match="belongs to b2 at http://b2:80") as caught:
            put(former, 10, 20)
        assert caught.value.fields["epoch"] == 2
    with pytest.raises(LogFenced):
        former.put(20, 30, content(20, 30), None, None)  # a name that is free
    assert ends(store) == [(1, 0, 10), (2, 10, 15)]
    assert former.end == former.objects.end == 10


def test_a_former_owner_that_puts_nothing_learns_that_the_log_was_taken_over(store: ObjectStore) -> None:
    old = begun(store, HERE)
    old.look()
    put(old, 0, 10)
    old.look()
    begun(store, THERE)
    with pytest.raises(LogFenced, match="b2"):
        old.look()
    with pytest.raises(LogFenced):
        put(old, 10, 20)


def test_what_a_former_owner_had_on_its_way_is_never_read(store: ObjectStore) -> None:
    former = begun(store, HERE)
    put(former, 0, 10)
    owner = begun(store, THERE)
    put(former, 20, 30)
    put(former, 30, 40)
    with pytest.raises(LogFenced):
        put(former, 10, 20)
    assert former.end == 10
    put(owner, 10, 50)
    assert ends(store) == [(1, 0, 10), (2, 10, 50)]
    assert (begun(store, HERE).number, begun(store, THERE).number) == (3, 4)


@pytest.mark.parametrize("applies", [True, False])
def test_a_put_whose_answer_was_lost_is_repeated(store: ObjectStore, applies: bool) -> None:
    unsure = Unsure(store, applies=applies)
    unsure.fails = 0
    epoch = begun(unsure, HERE)
    unsure.fails = 1
    with pytest.raises(ObjectStoreUnavailable):
        put(epoch, 0, 10)
    assert epoch.end == 0
    put(epoch, 0, 10)
    assert epoch.end == 10
    assert ends(store) == [(1, 0, 10)]


@pytest.mark.parametrize("applies", [True, False])
def test_a_fence_whose_answer_was_lost_is_found_by_the_same_claim(store: ObjectStore, applies: bool) -> None:
    unsure = Unsure(store, applies=applies)
    with pytest.raises(ObjectStoreUnavailable):
        begun(unsure, HERE)
    epoch = begun(unsure, HERE)
    assert epoch.number == 1
    assert len(names(store)) == 1
    put(epoch, 0, 10)


def test_another_process_never_takes_a_fence_for_its_own(store: ObjectStore) -> None:
    former = begun(store, HERE)
    again = begun(store, EpochClaim(HERE.owner, HERE.address))
    assert again.number == former.number + 1
    put(again, 0, 10)
    with pytest.raises(LogFenced):
        put(former, 0, 10)


def test_an_accepted_loss_leaves_a_gap_that_no_range_crosses(store: ObjectStore, meta: SqliteStore) -> None:
    manifests = Manifests(meta)
    put(begun(store, HERE, manifests), 0, 10)
    epoch = begun(store, THERE, manifests, first=15)
    put(epoch, 15, 20)
    assert ends(store) == ends(store, manifests) == [(1, 0, 10), (2, 15, 20)]
    found = LogObjects(LOG, 2, load_objects(store, LOG, manifests).objects)
    assert [one.first for one in found.covering(OffsetRange(3, 18))] == [0]
    assert found.covering(OffsetRange(12, 18)) == ()
    assert [one.first for one in found.covering(OffsetRange(15, 18))] == [15]


def test_an_object_that_somebody_else_put_is_damage(store: ObjectStore) -> None:
    epoch = begun(store, HERE)
    store.create(str(ObjectName(LOG, 1, 0)), content(0, 99))
    for _ in range(2):
        with pytest.raises(ObjectDamaged, match="no fence"):
            put(epoch, 0, 10)


def test_a_metadata_store_that_is_away_delays_only_manifests(
    store: ObjectStore, meta: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    class Away(Manifests):
        is_away = False

        def put(self, objects) -> None:  # type: ignore[no-untyped-def]
            if self.is_away:
                raise MetadataUnavailable("sqlite", "locked")
            super().put(objects)

    manifests = Away(meta)
    epoch = begun(store, HERE, manifests)
    manifests.is_away = True
    for first in (0, 10, 20):
        put(epoch, first, first + 10)
    assert epoch.end == 30
    assert caplog.text.count("stored later") == 1
    manifests.is_away = False
    put(epoch, 30, 40)
    assert [one.end for one in manifests.of(LOG)] == [10, 20, 30, 40]
    manifests.remove(manifests.of(LOG))
    begun(store, THERE, manifests)
    assert [one.end for one in manifests.of(LOG)] == [10, 20, 30, 40]


def test_of_two_racing_owners_the_store_keeps_one_chain(store: ObjectStore) -> None:
    """Each owner takes the log over again and again, and puts until it is fenced. What counted once still counts."""
    counted: list[tuple[int, int, int, str]] = []
    guard = threading.Lock()

    def own(owner: str) -> None:
        for round_number in range(12):
            try:
                epoch = begun(store, EpochClaim(f"{owner}-{round_number}"))
                for count in itertools.count(1):
                    first, end = epoch.end, epoch.end + count
                    frame = f"{owner}-{round_number}-{first}".encode()
                    epoch.put(first, end, content(first, end, first, frame), None, None)
                    with guard:
                        counted.append((epoch.number, first, end, frame.decode()))
                    if count == 6:
                        break
            except (LogFenced, ObjectStoreUnavailable):
                continue  # fenced, or the others were faster at every try

    threads = [threading.Thread(target=own, args=(owner,)) for owner in ("b1", "b2", "b3")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    found = load_objects(store, LOG, None)
    chain = [(one.epoch, one.first, one.end) for one in found.objects]
    assert all(one[2] == following[1] for one, following in itertools.pairwise(chain))
    assert sorted(counted) == [(*place, next(one[3] for one in counted if one[:3] == place)) for place in chain]
    for epoch, first, _, frame in counted:
        assert frame.encode() in store.get(str(ObjectName(LOG, epoch, first)))
    assert len({one[0] for one in counted}) > 3


class TestFencesThatStay:
    """Retention removes objects and leaves fences: a former owner may wake up at any time."""

    def uploaded(self, store: ObjectStore) -> None:
        for claim, start in ((HERE, 0), (THERE, 30), (HERE, 60)):
            epoch = begun(store, EpochClaim(claim.owner))
            for first in (start, start + 10, start + 20):
                put(epoch, first, first + 10)

    def remove_below(self, store: ObjectStore, end: int) -> None:
        gone = [one for one in load_objects(store, LOG, None).objects if one.end <= end]
        store.delete(str(ObjectName(LOG, one.epoch, one.first)) for one in gone)

    @pytest.mark.parametrize("end", [10, 30, 40, 60, 80])
    def test_a_log_whose_oldest_objects_were_removed_begins_behind_them(self, store: ObjectStore, end: int) -> None:
        self.uploaded(store)
        before = ends(store)
        self.remove_below(store, end)
        found = load_objects(store, LOG, None)
        assert [(one.epoch, one.first, one.end) for one in found.objects] == [one for one in before if one[1] >= end]
        assert (found.epoch, found.end) == (3, 90)
        assert sum(name.count("0" * 8) for name in names(store)) >= 1

    def test_a_former_owner_is_refused_after_the_objects_around_its_fence_are_gone(self, store: ObjectStore) -> None:
        former = begun(store, HERE)
        put(former, 0, 10)
        owner = begun(store, THERE)
        for first in (10, 20, 30):
            put(owner, first, first + 10)
        self.remove_below(store, 30)
        with pytest.raises(LogFenced):
            put(former, 10, 20)

    def test_the_first_object_of_a_crash_that_is_behind_a_hole_is_no_beginning(self, store: ObjectStore) -> None:
        epoch = begun(store, HERE)
        put(epoch, 10, 20)
        found = load_objects(store, LOG, None)
        assert (found.objects, found.end) == ((), 0)
        again = begun(store, THERE)
        assert again.end == 0
        put(again, 0, 10)
        assert ends(store) == [(2, 0, 10)]

    def test_a_missing_object_between_others_is_still_damage(self, store: ObjectStore) -> None:
        self.uploaded(store)
        self.remove_below(store, 10)
        store.delete([str(ObjectName(LOG, 2, 40))])
        with pytest.raises(ObjectDamaged, match="missing"):
            load_objects(store, LOG, None)
