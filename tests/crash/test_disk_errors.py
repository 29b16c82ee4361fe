"""A disk that is full, and a disk that fails: on real file systems, and on the faulty one where timing matters."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import frazil.aio
from frazil import DiskFull, LogFailed, RetentionSettings, Settings, Storage, WalSettings
from frazil.log.storage import open_storage
from frazil.testing import FakeClock, FaultyDisk

CHILD = Path(__file__).with_name("disk_child.py")
TOPIC = "/crash/messages"
KIB, MIB = 1024, 1024 * 1024

# --- full


def publish_until_full(topic: frazil.Topic, rows: dict[int, bytes], rng: random.Random) -> DiskFull:
    while True:
        payload = rng.randbytes(rng.choice([100, 5_000, 200_000]))
        try:
            rows[topic.publish(payload)] = payload
        except DiskFull as error:
            return error


def read_all(topic: frazil.Topic) -> dict[int, bytes]:
    return {message.offset: message.payload for message in topic.read("earliest")}


def test_a_full_file_system_refuses_messages_and_takes_them_again_once_there_is_room(small_file_system: Path) -> None:
    rng = random.Random(1)
    ballast = small_file_system / "ballast"
    ballast.write_bytes(bytes(8 * MIB))
    settings = Settings(data=small_file_system / "data", wal=WalSettings(max_file_size=MIB, cache_capacity=0))
    rows: dict[int, bytes] = {}
    with frazil.open(settings) as storage:
        topic = storage.topic(TOPIC)
        error = publish_until_full(topic, rows, rng)
        assert "no room" in error.message
        assert read_all(topic) == rows
        for _ in range(3):
            publish_until_full(topic, rows, rng)
        full_at = len(rows)
        ballast.unlink()
        rows[topic.publish(b"there is room")] = b"there is room"
        assert publish_until_full(topic, rows, rng)
        assert len(rows) > full_at + 10
        assert sorted(rows) == list(range(len(rows)))
        assert read_all(topic) == rows
    with frazil.open(settings) as storage:
        assert read_all(storage.topic(TOPIC)) == rows


def test_retention_makes_room_on_a_full_file_system(small_file_system: Path) -> None:
    rng, clock = random.Random(1), FakeClock()
    wal = WalSettings(
        max_file_size=MIB, max_file_age_ms=1_000, cache_capacity=0, retention=RetentionSettings(bytes=8 * MIB)
    )
    rows: dict[int, bytes] = {}
    with open_storage(Settings(data=small_file_system / "data", wal=wal), clock=clock) as storage:
        topic = storage.topic(TOPIC)
        for _ in range(3):
            publish_until_full(topic, rows, rng)
            clock.step_wall(1_000_000)  # the open segment is old, and sealing it needs room that is not there
            storage.maintain()
            rows[topic.publish(b"there is room")] = b"there is room"
        first = topic.stats().first_offset
        assert first > 0
        assert read_all(topic) == {offset: payload for offset, payload in rows.items() if offset >= first}


def test_retention_makes_room_where_there_is_not_even_room_to_close_a_segment() -> None:
    disk, clock = FaultyDisk(), FakeClock()
    wal = WalSettings(
        max_file_size=64 * KIB, max_file_age_ms=1_000, cache_capacity=0, retention=RetentionSettings(bytes=100 * KIB)
    )
    with open_storage(Settings(data=Path("/data"), wal=wal), disk=disk, clock=clock) as storage:
        topic = storage.topic(TOPIC)
        for _ in range(10):
            topic.publish(bytes(20 * KIB))
        clock.step_wall(1_000_000)
        disk.fail("write", errno.ENOSPC)  # the mark that would close the last segment
        storage.maintain()
        assert disk.failures_left == 0
        assert topic.stats().first_offset > 0
        assert topic.publish(b"there is room") == 10


def test_retention_empties_a_disk_without_a_free_byte() -> None:
    disk = FaultyDisk()
    wal = WalSettings(max_file_size=64 * KIB, cache_capacity=0, retention=RetentionSettings(bytes=100 * KIB))
    with open_storage(Settings(data=Path("/data"), wal=wal), disk=disk, clock=FakeClock()) as storage:
        topic = storage.topic(TOPIC)
        for _ in range(12):
            topic.publish(bytes(20 * KIB))
        disk.capacity_bytes = disk.used_bytes
        with pytest.raises(DiskFull):
            topic.publish(bytes(100 * KIB))
        storage.maintain()
        assert topic.stats().first_offset > 0
        assert topic.publish(bytes(20 * KIB)) == 12
        disk.capacity_bytes = None
        storage.maintain()
        assert any(entry.name == "~spare" for entry in disk.list(Path("/data/log"))), "the room is held again"


# --- failing


def strace(*arguments: str) -> list[str]:
    path = shutil.which("strace")
    if path is None:
        pytest.skip("strace is not installed")
    return [path, "-f", "-qq", "-o", os.devnull, *arguments]


@pytest.mark.parametrize("face", ["threads", "tasks"])
@pytest.mark.parametrize("when", [6, 15, 30])
def test_a_failed_fdatasync_ends_the_log_until_a_restart(tmp_path: Path, face: str, when: int) -> None:
    folder = str(tmp_path / "data")
    inject = strace("-e", "trace=fdatasync", "-e", f"inject=fdatasync:error=EIO:when={when}")
    run = subprocess.run(
        [*inject, sys.executable, str(CHILD), folder, face, "40"], capture_output=True, text=True, timeout=100
    )
    if run.returncode and "ptrace" in run.stderr.lower():
        pytest.skip("strace may not trace here")
    assert run.returncode == 0, run.stderr[-2_000:]
    told = json.loads(run.stdout)
    assert set(told["errors"]) == {"LogFailed"}, "all waiters, and all later appends"
    assert told["later"] == "LogFailed"
    assert len(told["errors"]) + len(told["acknowledged"]) == 4 * 40
    assert told["readable"] == told["acknowledged"], "reads go on, up to what is durable"
    with frazil.open(folder) as storage:
        found = {str(message.offset): message.payload.decode() for message in storage.topic(TOPIC).read("earliest")}
        assert sorted(map(int, found)) == list(range(len(found)))
        for offset, name in told["acknowledged"].items():
            assert found[offset].startswith(name + "."), f"offset {offset} is lost or wrong"
        assert len(set(found.values())) == len(found)
        assert storage.topic(TOPIC).publish("goes on") == len(found)


class HeldSync(FaultyDisk):
    """Syncs of segments wait at a gate, so that callers can gather behind one that will fail."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()
        self.watch(self._hold)

    def _hold(self, operation: str, path: Path) -> None:
        if operation == "sync" and ".wal" in path.name:
            self.reached.set()
            assert self.gate.wait(30)


@pytest.fixture
def disk() -> HeldSync:
    return HeldSync()


@pytest.fixture
def storage(disk: HeldSync) -> Iterator[Storage]:
    storage = open_storage(Settings(data=Path("/data"), wal=WalSettings(cache_capacity=0)), disk=disk)
    yield storage
    disk.gate.set()
    storage.close()


def wait_until_queued(topic: frazil.Topic, size: int) -> None:
    while topic.stats().queued_bytes < size:
        threading.Event().wait(0.001)  # a queue has no event to wait for; the test's own time limit bounds this


def test_a_failed_sync_reaches_every_waiting_thread_and_every_later_call(disk: HeldSync, storage: Storage) -> None:
    topic = storage.topic(TOPIC)
    assert topic.publish(b"before") == 0
    disk.reached.clear()
    disk.gate.clear()
    disk.fail("sync", errno.EIO)
    outcomes: list[object] = []

    def publish() -> None:
        try:
            outcomes.append(topic.publish(b"waiting"))
        except LogFailed as error:
            outcomes.append(error)

    first = threading.Thread(target=publish)
    first.start()
    assert disk.reached.wait(30)
    others = [threading.Thread(target=publish) for _ in range(7)]
    for thread in others:
        thread.start()
    wait_until_queued(topic, 7 * len(b"waiting"))
    disk.gate.set()
    for thread in [first, *others]:
        thread.join(30)
    assert [type(outcome) for outcome in outcomes] == [LogFailed] * 8
    with pytest.raises(LogFailed):
        topic.publish(b"later")
    with pytest.raises(LogFailed):
        topic.publish_many([b"later", b"too"])
    assert [message.payload for message in topic.read("earliest")] == [b"before"]
    assert topic.stats().failed is not None
    assert "Input/output error" in topic.stats().failed


def test_a_failed_sync_reaches_every_waiting_task(disk: HeldSync, storage: Storage) -> None:
    async def scenario() -> list[object]:
        topic = frazil.aio.Topic(storage.topic(TOPIC))
        assert await topic.publish(b"before") == 0
        disk.reached.clear()
        disk.gate.clear()
        disk.fail("sync", errno.EIO)
        first = asyncio.create_task(topic.publish(b"waiting"))
        assert await asyncio.to_thread(disk.reached.wait, 30)
        others = [asyncio.create_task(topic.publish(b"waiting")) for _ in range(20)]
        await asyncio.to_thread(wait_until_queued, storage.topic(TOPIC), 20 * len(b"waiting"))
        disk.gate.set()
        outcomes: list[object] = list(await asyncio.gather(first, *others, return_exceptions=True))
        with pytest.raises(LogFailed):
            await topic.publish(b"later")
        return outcomes

    assert [type(outcome) for outcome in asyncio.run(scenario())] == [LogFailed] * 21


def test_one_topic_that_failed_does_not_stop_the_others(disk: HeldSync, storage: Storage) -> None:
    bad, good = storage.topic("/crash/bad"), storage.topic("/crash/good")
    good.publish(b"one")
    disk.fail("sync", errno.EIO)
    with pytest.raises(LogFailed):
        bad.publish(b"lost")
    assert good.publish(b"two") == 1
    storage.maintain()


@pytest.mark.parametrize("operation", ["write", "allocate"])
@pytest.mark.parametrize("size", [100, 40_000])
def test_a_write_without_room_leaves_nothing_behind_and_the_next_one_goes_well(operation: str, size: int) -> None:
    disk = FaultyDisk()
    settings = Settings(data=Path("/data"), wal=WalSettings(max_file_size=64 * KIB, cache_capacity=0))
    rows: dict[int, bytes] = {}
    refused = 0
    with open_storage(settings, disk=disk) as storage:
        topic = storage.topic(TOPIC)
        for number in range(60):
            if number % 3 == 0:
                disk.fail(operation, errno.ENOSPC, after=number % 2, times=3)  # type: ignore[arg-type]
            payload = random.Random(number).randbytes(size)
            try:
                rows[topic.publish(payload)] = payload
            except DiskFull:
                refused += 1
            disk.mend()
        assert read_all(topic) == rows
        assert sorted(rows) == list(range(len(rows)))
    assert refused > 0 or operation == "allocate"
    with open_storage(settings, disk=disk) as storage:
        assert storage.topic(TOPIC).stats().torn_tail is None
        assert read_all(storage.topic(TOPIC)) == rows


def test_a_removal_that_fails_leaves_no_gap(tmp_path: Path) -> None:
    disk, clock = FaultyDisk(), FakeClock()
    wal = WalSettings(max_file_size=64 * KIB, cache_capacity=0, retention=RetentionSettings(bytes=100 * KIB))
    settings = Settings(data=Path("/data"), wal=wal)
    with open_storage(settings, disk=disk, clock=clock) as storage:
        topic = storage.topic(TOPIC)
        for _ in range(30):
            topic.publish(bytes(20 * KIB))
        disk.fail("remove", errno.EIO, times=1)
        storage.maintain()
        assert disk.failures_left == 0
        storage.maintain()
        first, end = topic.stats().first_offset, topic.stats().end
        assert first > 0
        left = {int(entry.name[:20]) for entry in disk.list(Path("/data/log/crash/messages")) if "wal" in entry.name}
        assert min(left) == first, "what could not be removed at first was forgotten"
    with open_storage(settings, disk=disk, clock=clock) as storage:
        assert sorted(read_all(storage.topic(TOPIC))) == list(range(first, end))


@pytest.mark.parametrize("segment_kib", [64, 1024])
def test_retention_makes_room_when_the_budget_is_used_up(tmp_path: Path, segment_kib: int) -> None:
    clock = FakeClock()
    wal = WalSettings(
        max_file_size=segment_kib * KIB,
        max_file_age_ms=1_000,
        cache_capacity=0,
        disk_bytes_max=300 * KIB,
        retention=RetentionSettings(age_ms=5_000),
    )
    with open_storage(Settings(data=tmp_path, wal=wal), clock=clock) as storage:
        topic = storage.topic(TOPIC)
        for size in [3_000, 20_000, 7, 500]:
            with pytest.raises(frazil.DiskBudgetExceeded):  # noqa: PT012 - the call that is refused is not known
                while True:
                    topic.publish(bytes(size))
            clock.step_wall(6_000_000)
            storage.maintain()
            topic.publish(b"there is room")


@pytest.mark.parametrize("operation", ["write", "sync", "rename", "sync_folder"])
def test_a_storage_that_cannot_record_its_ends_still_gives_the_folder_back(operation: str) -> None:
    disk = FaultyDisk()
    settings = Settings(data=Path("/data"))
    storage = open_storage(settings, disk=disk)
    storage.topic(TOPIC).publish(b"row")
    disk.fail(operation, errno.EIO, times=10)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="Input/output"):
        storage.close()
    disk.mend()
    with open_storage(settings, disk=disk) as storage:
        assert read_all(storage.topic(TOPIC)) == {0: b"row"}


def test_recovery_on_a_full_disk_says_so_and_works_once_there_is_room() -> None:
    disk = FaultyDisk()
    settings = Settings(data=Path("/data"))
    with open_storage(settings, disk=disk) as storage:
        storage.topic(TOPIC).publish(b"row")
    path = Path("/data/log/crash/messages/00000000000000000000.wal")
    file = disk.open(path, "write")
    file.write([b"torn" * 2_000], file.size())
    disk.capacity_bytes = disk.used_bytes
    with open_storage(settings, disk=disk) as storage:
        for _ in range(3):
            with pytest.raises(DiskFull):
                storage.topic(TOPIC)
        disk.capacity_bytes = None
        assert read_all(storage.topic(TOPIC)) == {0: b"row"}
        assert sum(entry.name.endswith(".torn") for entry in disk.list(path.parent)) == 1


def test_a_topic_that_finds_no_room_is_not_made_and_says_so() -> None:
    disk = FaultyDisk()
    with open_storage(Settings(data=Path("/data")), disk=disk) as storage:
        disk.capacity_bytes = 20
        with pytest.raises(DiskFull):
            storage.create_topic(TOPIC)
        assert storage.topics() == []
        disk.capacity_bytes = None
        assert storage.create_topic(TOPIC).publish(b"row") == 0
