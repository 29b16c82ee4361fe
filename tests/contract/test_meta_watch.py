"""What every store of small facts does with watches and leases."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from metas import TTL_MS, Place, add_in_process, add_one, hold

import frazil
from frazil.meta.sqlite import SqliteStore
from frazil.meta.store import ABSENT, Change, Lease, MetaStore, StoredEntry, Watch
from frazil.testing import FakeClock

WAIT_MS = 20_000


def put(store: MetaStore, key: str, value: bytes = b"", lease: Lease | None = None) -> int:
    found = store.get(key)
    revision = store.put_if(key, value, ABSENT if found is None else found.revision, lease)
    assert revision is not None
    return revision


def take(watch: Watch, count: int) -> list[Change]:
    found = []
    for _ in range(count):
        change = watch.next(WAIT_MS)
        assert change is not None, f"only {len(found)} of {count} changes came"
        found.append(change)
    return found


def test_a_watch_sees_every_change_under_its_prefix_in_order(store: MetaStore) -> None:
    with store.watch("/s/", store.snapshot("/").revision) as watch:
        first = put(store, "/s/a", b"one")
        put(store, "/other")
        put(store, "/s", b"no part of it")
        second = put(store, "/s/b", b"two")
        third = put(store, "/s/a", b"three")
        store.delete("/s/b", second)
        seen = take(watch, 4)
        assert seen[:3] == [
            Change("/s/a", b"one", first),
            Change("/s/b", b"two", second),
            Change("/s/a", b"three", third),
        ]
        assert (seen[3].key, seen[3].value) == ("/s/b", None)
        assert seen[3].revision > third
        assert watch.next(50) is None
        assert watch.revision >= seen[3].revision


def test_a_watch_begins_after_any_revision_that_is_known(store: MetaStore) -> None:
    revisions = [put(store, "/a", str(turn).encode()) for turn in range(5)]
    with store.watch("/", revisions[1]) as watch:
        assert [change.revision for change in take(watch, 3)] == revisions[2:]


def test_a_list_and_the_watch_after_it_miss_nothing_and_double_nothing(place: Place, store: MetaStore) -> None:
    adding = threading.Thread(target=add_one, args=(store, 100))
    adding.start()
    listing = store.snapshot("/count")
    value = int(listing.entries[0].value) if listing.entries else 0
    with store.watch("/count", listing.revision) as watch:
        values = [int(change.value or b"") for change in take(watch, 100 - value)]
    adding.join()
    assert values == list(range(value + 1, 101))


def test_a_watch_sees_what_other_processes_change(place: Place, store: MetaStore) -> None:
    with store.watch("/", store.snapshot("/").revision) as watch:
        process = multiprocessing.get_context("spawn").Process(target=add_in_process, args=(place, 50))
        process.start()
        seen = take(watch, 50)
        process.join(60)
    assert [int(change.value or b"") for change in seen] == list(range(1, 51))


def test_a_watch_goes_on_where_another_ended(store: MetaStore) -> None:
    start = store.snapshot("/").revision
    lease = store.grant_lease(60_000)
    for key in ("/a", "/b", "/c"):
        put(store, key, lease=lease)
    with store.watch("/", start) as watch:
        take(watch, 3)
        before = watch.revision
        store.revoke_lease(lease)
        first = take(watch, 1)
        assert watch.revision == before, "the other keys of the lease were not yet taken"
    with store.watch("/", watch.revision) as again:
        seen = take(again, 3)
    assert [change.key for change in seen] == ["/a", "/b", "/c"]
    assert seen[0] == first[0]
    assert {change.revision for change in seen} == {first[0].revision}


def test_changes_that_are_no_longer_known_are_told(place: Place, store: MetaStore) -> None:
    before = place.compact()
    with store.watch("/", before) as watch, pytest.raises(frazil.RevisionCompacted, match="list again"):
        watch.next(WAIT_MS)
    with store.watch("/", store.snapshot("/").revision) as watch:
        put(store, "/a", b"one")
        assert take(watch, 1)[0].value == b"one"


@pytest.mark.parametrize("what", ["watch", "store"])
def test_a_watch_that_waits_ends_when_it_is_closed(place: Place, what: str) -> None:
    store = place.open()
    watch = store.watch("/", store.snapshot("/").revision)
    seen: list[Change] = []
    following = threading.Thread(target=lambda: seen.extend(watch))
    following.start()
    put(store, "/a")
    if what == "watch":
        watch.close()
    else:
        store.close()
    following.join(10)
    assert not following.is_alive()
    assert len(seen) <= 1
    with pytest.raises(frazil.Closed):
        watch.next(0)
    store.close()


def test_keys_go_with_their_lease(store: MetaStore) -> None:
    lease = store.grant_lease(60_000)
    assert lease.ttl_ms >= 60_000
    put(store, "/a", lease=lease)
    put(store, "/b", lease=lease)
    put(store, "/b", b"no longer of the lease")
    store.revoke_lease(lease)
    assert [entry.key for entry in store.list("/")] == ["/b"]
    assert store.keep_alive(lease) is False
    with pytest.raises(frazil.LeaseExpired, match="grant another"):
        store.put_if("/c", b"", ABSENT, lease)
    assert store.get("/c") is None
    store.revoke_lease(lease)


def test_a_lease_lasts_as_long_as_it_is_kept_alive(place: Place, store: MetaStore) -> None:
    lease = store.grant_lease(TTL_MS[place.kind])
    revision = put(store, "/a", lease=lease)
    with store.watch("/", revision) as watch:
        for _ in range(4):
            assert watch.next(lease.ttl_ms // 3) is None
            assert store.keep_alive(lease) is True
        (gone,) = take(watch, 1)
    assert (gone.key, gone.value) == ("/a", None)
    assert store.get("/a") is None
    assert store.keep_alive(lease) is False


def test_what_a_killed_process_held_is_free_for_others(place: Place, store: MetaStore) -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=hold, args=(place, theirs))
    process.start()
    revision = ours.recv()
    with store.watch("/held", revision) as watch:
        assert watch.next(TTL_MS[place.kind] * 5 // 4) is None, "it was held"
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        (gone,) = take(watch, 1)
    assert gone.value is None
    assert store.put_if("/held", b"ours", ABSENT) is not None


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def embedded(tmp_path: Path, clock: FakeClock) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "meta.db", clock)
    yield store
    store.close()


def test_whoever_comes_next_ends_a_lease_that_is_due(embedded: SqliteStore, clock: FakeClock) -> None:
    lease = embedded.grant_lease(1_000)
    revision = put(embedded, "/a", b"one", lease)
    clock.advance(999_999)
    assert embedded.get("/a") == StoredEntry("/a", b"one", revision)
    clock.advance(1)
    assert embedded.get("/a") is None
    assert embedded.snapshot("/").revision == revision + 1
    lease = embedded.grant_lease(1_000)
    put(embedded, "/a", b"two", lease)
    clock.advance(1_000_000)
    assert embedded.put_if("/a", b"three", ABSENT) is not None


def test_a_watch_of_the_embedded_store_ends_leases_too(embedded: SqliteStore, clock: FakeClock) -> None:
    lease = embedded.grant_lease(1_000)
    revision = put(embedded, "/a", lease=lease)
    with embedded.watch("/", revision) as watch:
        assert watch.next(50) is None
        clock.advance(1_000_000)
        assert take(watch, 1) == [Change("/a", None, revision + 1)]


def test_the_embedded_store_keeps_a_bounded_number_of_changes(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "meta.db", changes_max=100)
    revisions = [put(store, "/a", str(turn).encode()) for turn in range(300)]
    large = [put(store, "/large", bytes(1024 * 1024)) for _ in range(20)]
    with store.watch("/a", revisions[-1]) as watch, pytest.raises(frazil.RevisionCompacted):
        watch.next(0)
    with store.watch("/", large[-10]) as watch:
        assert len(take(watch, 9)) == 9
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 80 * 1024 * 1024
    store.close()


def test_a_store_behind_a_fence_changes_nothing_once_the_key_is_not_its_own(place: Place, store: MetaStore) -> None:
    """Also who slept past the lease that held the key."""
    lease = store.grant_lease(60_000)
    session = put(store, "/session", b"mine", lease)
    store.fence("/session", b"mine")
    kept = put(store, "/a", b"one")
    store.put_all({"/b": b"one"})
    assert store.put_if("/a", b"late", kept + 1) is None, "what has changed is told as ever"
    assert store.put_if("/session", b"mine", session, lease) is not None, "the key of the fence itself can be written"
    store.put_all({"/b": b"two"})
    store.revoke_lease(lease)
    other = place.open()
    for value in (None, b"another's"):
        if value is not None:
            put(other, "/session", value)
        for change in (
            lambda: store.put_if("/a", b"two", kept),
            lambda: store.put_if("/c", b"two", ABSENT),
            lambda: store.put_all({"/b": b"three"}),
            lambda: store.delete("/a", kept),
        ):
            with pytest.raises(frazil.Fenced, match="/session is no longer held by this process"):
                change()
    assert [(entry.key, entry.value) for entry in other.list("/")] == [
        ("/a", b"one"),
        ("/b", b"two"),
        ("/session", b"another's"),
    ]
    assert other.put_if("/a", b"two", kept) is not None, "who has no fence is not held back"
    other.close()
    put(store, "/session", b"mine")
    put(store, "/a", b"three")
