"""What every store of small facts does with keys, values and revisions. Another store is a kind of `Place`."""

from __future__ import annotations

import multiprocessing
import sqlite3
import threading
from pathlib import Path

import pytest
from metas import Place, add_in_process, add_one

import frazil
from frazil.meta.sqlite import SqliteStore
from frazil.meta.store import ABSENT, KEY_BYTES_MAX, VALUE_BYTES_MAX, MetaStore, StoredEntry
from frazil.testing import FakeClock


def test_what_was_never_put_is_not_there(store: MetaStore) -> None:
    assert store.get("/a") is None
    assert store.list("/") == []
    assert store.delete("/a", 1) is False


def test_a_value_is_there_once_it_was_put(store: MetaStore) -> None:
    revision = store.put_if("/a", b"\0one", ABSENT)
    assert revision is not None
    assert revision > ABSENT
    assert store.get("/a") == StoredEntry("/a", b"\0one", revision)


def test_only_who_knows_the_revision_changes_a_value(store: MetaStore) -> None:
    first = store.put_if("/a", b"one", ABSENT)
    assert first is not None
    assert store.put_if("/a", b"again", ABSENT) is None
    assert store.put_if("/a", b"again", first + 1) is None
    second = store.put_if("/a", b"two", first)
    assert second is not None
    assert second > first
    assert store.put_if("/a", b"late", first) is None
    assert store.delete("/a", first) is False
    assert store.get("/a") == StoredEntry("/a", b"two", second)


def test_what_is_put_with_a_key_is_put_if_that_is(store: MetaStore) -> None:
    others = {f"/b/{number}": b"b" for number in range(250)}
    first = store.put_if("/a", b"one", ABSENT, also=others)
    assert store.get("/a") == StoredEntry("/a", b"one", first or 0)
    assert {entry.key: entry.value for entry in store.list("/b/")} == others
    assert store.put_if("/a", b"two", ABSENT, also={"/b/0": b"late", "/c": b"late"}) is None
    assert store.get("/c") is None
    assert {entry.key: entry.value for entry in store.list("/b/")} == others
    assert store.put_if("/a", b"two", first or 0, also={"/b/0": b"new"}) is not None
    found = store.get("/b/0")
    assert found is not None
    assert found.value == b"new"


def test_a_key_made_again_has_no_revision_of_before(store: MetaStore) -> None:
    first = store.put_if("/a", b"one", ABSENT)
    assert first is not None
    assert store.delete("/a", first) is True
    assert store.get("/a") is None
    second = store.put_if("/a", b"one", ABSENT)
    assert second is not None
    assert second > first
    assert store.put_if("/a", b"two", first) is None


def test_a_prefix_lists_what_begins_so_and_nothing_else(store: MetaStore) -> None:
    for key in ("/s/b", "/s/a", "/s%/x", "/S/a", "/t", "/s", "/s/a/deep", "/s/é"):
        store.put_if(key, key.encode(), ABSENT)
    assert [entry.key for entry in store.list("/s/")] == ["/s/a", "/s/a/deep", "/s/b", "/s/é"]
    assert [entry.value for entry in store.list("/s%")] == [b"/s%/x"]
    assert store.list("/none") == []


def test_it_outlives_who_put_it(place: Place) -> None:
    store = place.open()
    revision = store.put_if("/a", b"one", ABSENT)
    store.close()
    again = place.open()
    assert again.get("/a") == StoredEntry("/a", b"one", revision)
    again.close()
    for call in (lambda: again.get("/a"), lambda: again.put_if("/a", b"", ABSENT), lambda: again.watch("/", 0)):
        with pytest.raises(frazil.Closed):
            call()
    again.close()


@pytest.mark.parametrize("key", ["", "a", "/a\0b", "/" + "x" * KEY_BYTES_MAX])
def test_a_wrong_key_is_refused(store: MetaStore, key: str) -> None:
    with pytest.raises(frazil.InvalidInput, match="key: must begin with /"):
        store.put_if(key, b"", ABSENT)


def test_a_value_that_is_too_large_is_refused(store: MetaStore) -> None:
    with pytest.raises(frazil.InvalidInput, match="value: has 1048577 bytes"):
        store.put_if("/a", b"x" * (VALUE_BYTES_MAX + 1), ABSENT)


def test_of_those_who_change_at_once_each_counts(store: MetaStore) -> None:
    threads = [threading.Thread(target=add_one, args=(store, 25)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = store.get("/count")
    assert found is not None
    assert found.value == b"100"


def test_also_between_processes(place: Place, store: MetaStore) -> None:
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=add_in_process, args=(place, 30)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    found = store.get("/count")
    assert found is not None
    assert found.value == b"90"


def test_a_file_of_the_first_version_is_taken_over(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "meta.db") as old:
        old.executescript("""
            CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL) WITHOUT ROWID;
            CREATE TABLE newest (only INTEGER PRIMARY KEY CHECK (only = 1), revision INTEGER NOT NULL);
            INSERT INTO entries VALUES ('/a', x'6f6e65', 7);
            INSERT INTO newest VALUES (1, 9);
        """)
    old.close()
    store = SqliteStore(tmp_path / "meta.db")
    assert store.snapshot("/").entries == [StoredEntry("/a", b"one", 7)]
    assert store.put_if("/a", b"two", 7) == 10
    with store.watch("/", 9) as watch:
        assert watch.next() is not None
    with store.watch("/", 8) as watch, pytest.raises(frazil.RevisionCompacted):
        watch.next()
    store.close()


def test_a_file_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "meta.db") as new:
        new.execute("PRAGMA user_version = 99")
    new.close()
    with pytest.raises(frazil.NewerFormat, match=r"meta\.db was made by a newer Frazil \(format version 99, "):
        SqliteStore(tmp_path / "meta.db")


def test_a_file_that_is_no_store_is_told_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    path.write_bytes(b"not a database, but the only copy of something " * 100)
    before = path.read_bytes()
    with pytest.raises(frazil.FrazilError, match=r"meta\.db cannot be used: file is not a database"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_many_values_are_set_together_whatever_was_there(store: MetaStore) -> None:
    first = store.put_if("/p/1", b"before", ABSENT)
    values = {f"/p/{number}": f"{number}".encode() * 20_000 for number in range(300)}
    store.put_all(values)
    assert {entry.key: entry.value for entry in store.list("/p/")} == values
    assert first is not None
    assert store.put_if("/p/1", b"late", first) is None
    store.put_all({})
    assert len(store.list("/")) == 300


def test_one_bad_value_among_many_sets_none(store: MetaStore) -> None:
    with pytest.raises(frazil.InvalidInput, match="value: has"):
        store.put_all({"/p/1": b"good", "/p/2": b"x" * (VALUE_BYTES_MAX + 1)})
    assert store.list("/") == []


def test_a_watch_sees_all_values_that_are_set_together(store: MetaStore) -> None:
    with store.watch("/p/", store.snapshot("/").revision) as watch:
        store.put_all({f"/p/{number}": b"x" for number in range(10)})
        seen = [watch.next(10_000) for _ in range(10)]
    assert sorted(change.key for change in seen if change is not None) == sorted(f"/p/{number}" for number in range(10))


def test_a_prefix_and_a_suffix_list_what_begins_and_ends_so(store: MetaStore) -> None:
    keys = ["/s/a/x", "/s/b/x", "/s/b/y", "/s/x", "/t/x", "/s\U0010ffff/x", "/s0/x"]
    store.put_all(dict.fromkeys(keys, b""))
    assert [entry.key for entry in store.list("/s/", "/x")] == ["/s/a/x", "/s/b/x", "/s/x"]
    assert [entry.key for entry in store.list("/s/b/", "/none")] == []
    assert len(store.list("/s")) == 6, "also behind the last of all characters"
    assert [entry.key for entry in store.list("/s\U0010ffff")] == ["/s\U0010ffff/x"]


def test_keys_and_all_below_prefixes_are_deleted_together_whatever_they_are(store: MetaStore) -> None:
    store.put_all(dict.fromkeys(("/a", "/b", "/c/1", "/c/2", "/c2", "/d"), b"one"))
    before = store.snapshot("/").revision
    with store.watch("/", before) as watch:
        store.delete_all(["/a", "/b", "/was/never"], ["/c/"])
        seen = [watch.next(10_000) for _ in range(4)]
        assert [entry.key for entry in store.list("/")] == ["/c2", "/d"]
        assert sorted(change.key for change in seen if change is not None) == ["/a", "/b", "/c/1", "/c/2"]
        assert {change.value for change in seen if change is not None} == {None}
        assert len({change.revision for change in seen if change is not None}) == 1
    store.delete_all(["/a"], ["/c/"])
    assert [entry.key for entry in store.list("/")] == ["/c2", "/d"], "once more changes nothing"
    with pytest.raises(frazil.InvalidInput, match="key: must begin with /"):
        store.delete_all(["/d", "bad"])
    assert store.get("/d") is not None


def test_many_keys_are_deleted_also_in_several_steps(store: MetaStore) -> None:
    keys = [f"/k/{number}" for number in range(350)]
    store.put_all({**dict.fromkeys(keys, b""), "/kept": b""})
    store.delete_all(keys)
    assert [entry.key for entry in store.list("/")] == ["/kept"]


HOUR_US = 3_600_000_000


def test_a_clock_that_is_set_back_prolongs_no_lease_and_one_set_forwards_ends_it(tmp_path: Path) -> None:
    """Else what a dead process held would be held for as many hours as the clock was wrong."""
    clock = FakeClock()
    store = SqliteStore(tmp_path / "meta.db", clock)
    lease = store.grant_lease(10_000)
    assert store.put_if("/held", b"", ABSENT, lease)
    with store.watch("/", store.snapshot("/").revision) as watch:
        assert watch.next(0) is None
        clock.step_wall(-5 * HOUR_US)
        assert store.get("/held") is not None, "its time is not over"
        clock.advance(9_000_000)
        assert watch.next(0) is None
        clock.advance(2_000_000)
        assert store.get("/held") is None
        change = watch.next(10_000)
        assert change is not None
        assert change.value is None
    assert not store.keep_alive(lease)
    kept = store.grant_lease(10_000)
    clock.step_wall(5 * HOUR_US)
    assert not store.keep_alive(kept), "whoever held it is told, and holds nothing by it"
    with pytest.raises(frazil.LeaseExpired):
        store.put_if("/late", b"", ABSENT, kept)
    store.close()


def test_a_watch_alone_notices_that_the_clock_was_set_back(tmp_path: Path) -> None:
    clock = FakeClock()
    store = SqliteStore(tmp_path / "meta.db", clock)
    assert store.put_if("/held", b"", ABSENT, store.grant_lease(10_000))
    with store.watch("/", store.snapshot("/").revision) as watch:
        assert watch.next(0) is None
        clock.step_wall(-5 * HOUR_US)
        assert watch.next(0) is None
        clock.advance(11_000_000)
        change = watch.next(10_000)
        assert change is not None
        assert change.key == "/held"
    store.close()
