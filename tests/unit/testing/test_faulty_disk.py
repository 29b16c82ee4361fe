"""The faulty disk itself: what it may lose, what it may not, and that it does lose it."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from frazil.core.disk import Disk, LocalDisk
from frazil.core.disk.memory import MemoryDisk
from frazil.core.errors import FolderInUse
from frazil.testing import FakeClock, FaultyDisk, PowerCut

PAGE = 4096


def content(disk: Disk, path: Path) -> bytes | None:
    try:
        file = disk.open(path, "read")
    except FileNotFoundError:
        return None
    return file.read(file.size(), 0)


def after_cuts(disk: FaultyDisk, path: Path, tries: int = 200) -> set[bytes | None]:
    return {content(disk.crash(random.Random(seed)), path) for seed in range(tries)}


@pytest.fixture
def disk() -> FaultyDisk:
    disk = FaultyDisk()
    disk.make_folder(Path("/d"))
    return disk


def durable_file(disk: FaultyDisk, data: bytes) -> Path:
    file = disk.open(Path("/d/f"), "create")
    file.write([data], 0)
    file.sync()
    disk.sync_folder(Path("/d"))
    return Path("/d/f")


@pytest.mark.parametrize("kind", ["local", "memory", "faulty"])
def test_every_disk_behaves_alike_while_nothing_goes_wrong(kind: str, tmp_path: Path) -> None:
    disk: Disk = {"local": LocalDisk, "memory": MemoryDisk, "faulty": FaultyDisk}[kind]()
    root = tmp_path / "a/b"
    disk.make_folder(root)
    disk.make_folder(root)
    file = disk.open(root / "f", "create")
    with pytest.raises(FileExistsError):
        disk.open(root / "f", "create")
    file.write([b"ab", b"", b"cd"], 2)
    file.allocate(0, 10)
    file.sync()
    assert file.read(100, 0) == b"\0\0abcd\0\0\0\0"
    assert file.read(2, 3) == b"bc"
    assert file.read(5, 10) == b""
    file.truncate(3)
    file.truncate(5)
    assert (file.read(9, 0), file.size()) == (b"\0\0a\0\0", 5)
    file.close()
    disk.rename(root / "f", root / "g")
    disk.sync_folder(root)
    assert [(entry.name, entry.is_folder, entry.size_bytes) for entry in disk.list(root)] == [("g", False, 5)]
    disk.rename(root, tmp_path / "a/c")
    assert content(disk, tmp_path / "a/c/g") == b"\0\0a\0\0"
    with pytest.raises(OSError, match="not empty"):
        disk.remove_folder(tmp_path / "a/c")
    disk.remove(tmp_path / "a/c/g")
    disk.remove_folder(tmp_path / "a/c")
    for call in (disk.list, disk.remove, disk.remove_folder, disk.sync_folder, lambda path: disk.open(path, "write")):
        with pytest.raises(FileNotFoundError):
            call(tmp_path / "a/c")


def test_what_was_synced_under_a_synced_name_survives_every_cut(disk: FaultyDisk) -> None:
    path = durable_file(disk, b"safe" * 5_000)
    assert after_cuts(disk, path) == {b"safe" * 5_000}


def test_unsynced_pages_survive_each_on_its_own_and_may_be_torn(disk: FaultyDisk) -> None:
    path = durable_file(disk, bytes(3 * PAGE))
    disk.open(path, "write").write([b"x" * 3 * PAGE], 0)
    found = after_cuts(disk, path)
    assert bytes(3 * PAGE) in found
    assert b"x" * 3 * PAGE in found
    assert bytes(PAGE) + b"x" * 2 * PAGE in found, "a later page without an earlier one"
    assert any(len({data[:512], data[512:1024]}) == 2 for data in found if data), "a torn page"


def test_an_unsynced_size_may_be_lost_and_an_overwritten_state_may_come_up(disk: FaultyDisk) -> None:
    path = durable_file(disk, b"0" * PAGE)
    file = disk.open(path, "write")
    file.write([b"1" * PAGE], 0)
    file.write([b"2" * PAGE], 0)
    file.allocate(PAGE, PAGE)
    found = after_cuts(disk, path)
    assert {len(data) for data in found if data is not None} == {PAGE, 2 * PAGE}
    assert {b"0" * PAGE, b"1" * PAGE, b"2" * PAGE} <= {data[:PAGE] for data in found if data is not None}


def test_a_synced_file_without_a_synced_name_may_vanish(disk: FaultyDisk) -> None:
    file = disk.open(Path("/d/new"), "create")
    file.write([b"x"], 0)
    file.sync()
    assert after_cuts(disk, Path("/d/new")) == {None, b"x"}


def test_names_are_kept_or_lost_each_on_its_own_and_a_rename_as_a_whole(disk: FaultyDisk) -> None:
    path = durable_file(disk, b"old")
    disk.open(Path("/d/other"), "create")
    disk.rename(path, Path("/d/renamed"))
    found = set()
    for seed in range(200):
        names = {entry.name for entry in disk.crash(random.Random(seed)).list(Path("/d"))}
        assert ("f" in names) != ("renamed" in names)
        found.add(frozenset(names))
    assert len(found) == 4
    disk.sync_folder(Path("/d"))
    assert after_cuts(disk, Path("/d/renamed")) == {b"old"}


def test_a_failed_sync_leaves_pages_that_look_clean_and_are_not(disk: FaultyDisk) -> None:
    path = durable_file(disk, b"0" * 4 * PAGE)
    file = disk.open(path, "write")
    file.write([b"1" * 4 * PAGE], 0)
    disk.fail("sync", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.sync()
    assert content(disk, path) == b"1" * 4 * PAGE
    (after,) = after_cuts(disk, path)
    assert after != b"1" * 4 * PAGE
    file.write([b"1" * 4 * PAGE], 0)
    file.sync()
    assert after_cuts(disk, path) == {b"1" * 4 * PAGE}


def test_a_full_disk_writes_what_fits_and_says_so(disk: FaultyDisk) -> None:
    disk.capacity_bytes = 10
    file = disk.open(Path("/d/f"), "create")
    with pytest.raises(OSError, match="No space") as refused:
        file.write([b"x" * 20], 0)
    assert refused.value.errno == errno.ENOSPC
    assert file.size() == 10
    file.truncate(0)
    file.write([b"fits"], 0)
    assert disk.used_bytes == 4


def test_failures_come_when_asked_for_and_as_often(disk: FaultyDisk) -> None:
    file = disk.open(Path("/d/f"), "create")
    disk.fail("truncate", errno.EROFS, after=1, times=2)
    file.truncate(1)
    for _ in range(2):
        with pytest.raises(OSError, match="Read-only"):
            file.truncate(2)
    file.truncate(3)
    assert disk.failures_left == 0


def test_after_the_cut_every_call_raises_and_no_code_that_catches_errors_goes_on(disk: FaultyDisk) -> None:
    file = disk.open(Path("/d/f"), "create")
    disk.cut_power_after(1)
    file.truncate(5)
    with pytest.raises(PowerCut):
        file.truncate(6)
    for call in (lambda: file.read(1, 0), file.sync, lambda: disk.list(Path("/d"))):
        with pytest.raises(PowerCut):
            call()
    assert not issubclass(PowerCut, Exception)


def test_a_killed_process_is_dead_and_the_next_one_sees_all_it_wrote(disk: FaultyDisk) -> None:
    lock = disk.lock(Path("/d/owner"))
    with pytest.raises(FolderInUse):
        disk.lock(Path("/d/owner"))
    file = disk.open(Path("/d/f"), "create")
    file.write([b"unsynced"], 0)
    after = disk.kill()
    with pytest.raises(PowerCut):
        file.sync()
    assert content(after, Path("/d/f")) == b"unsynced"
    after.lock(Path("/d/owner")).release()
    lock.release()


def test_a_folder_left_unsynced_by_a_killed_process_is_synced_by_the_next(tmp_path: Path) -> None:
    synced: list[Path] = []

    class Watched(LocalDisk):
        def sync_folder(self, folder: Path) -> None:
            synced.append(folder)
            super().sync_folder(folder)

    (tmp_path / "a").mkdir()
    Watched().make_folder(tmp_path / "a/b")
    assert synced == [tmp_path, tmp_path / "a"]


def test_the_fake_clock_moves_only_when_told_to() -> None:
    clock = FakeClock(now_us=100)
    clock.advance(5)
    clock.step_wall(-50)
    assert (clock.now_us(), clock.monotonic_us()) == (55, 5)
    with pytest.raises(ValueError, match="forwards"):
        clock.advance(-1)
