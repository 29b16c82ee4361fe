"""A process out of descriptors: what passes is not fatal, and no sign of corruption."""

from __future__ import annotations

import errno
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import frazil
from frazil import ResourcesExhausted, Settings, SyncMode, WalSettings
from frazil.log.repair.check import check
from frazil.log.repair.repair import repair
from frazil.log.storage import open_storage
from frazil.testing import FaultyDisk

TOPIC = "/default/orders"
KIB = 1024
SETTINGS = Settings(data=Path("/data"), wal=WalSettings(max_file_size=64 * KIB, cache_capacity=0))


def payloads(topic: frazil.Topic) -> list[bytes]:
    return [message.payload for message in topic.read("earliest")]


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN])
@pytest.mark.parametrize("operation", ["create", "sync_folder", "write"])
def test_a_segment_that_cannot_be_begun_now_is_begun_later(operation: str, error: int) -> None:
    disk = FaultyDisk()
    with open_storage(SETTINGS, disk=disk) as storage:
        topic = storage.topic(TOPIC)
        rows = [b"%d" % number + bytes(20 * KIB) for number in range(8)]
        for row in rows[:3]:
            topic.publish(row)
        disk.fail(operation, error, times=2)  # type: ignore[arg-type]
        refused = 0
        for row in rows[3:]:
            while True:
                try:
                    topic.publish(row)
                    break
                except ResourcesExhausted:
                    refused += 1
        assert refused == 2
        assert payloads(topic) == rows
    with open_storage(SETTINGS, disk=disk) as storage:
        assert payloads(storage.topic(TOPIC)) == rows


@pytest.mark.parametrize("mode", list(SyncMode))
def test_a_parked_segment_that_cannot_be_opened_now_is_opened_later(mode: SyncMode) -> None:
    disk = FaultyDisk()
    wal = WalSettings(open_files_max=1, sync_mode=mode, fsync_interval_ms=100_000, cache_capacity=0)
    with open_storage(Settings(data=Path("/data"), wal=wal), disk=disk) as storage:
        topic, other = storage.topic(TOPIC), storage.topic("/default/other")
        topic.publish("a")
        topic.sync() if mode is SyncMode.PERIODIC else None
        other.publish("parks the first")
        disk.fail("open", errno.EMFILE)
        with pytest.raises(ResourcesExhausted):
            topic.publish("b")
        assert topic.publish("b") == 1
        topic.sync()
        assert payloads(topic) == [b"a", b"b"]


def test_a_reader_without_a_descriptor_says_so_and_reads_on_later() -> None:
    disk = FaultyDisk()
    with open_storage(SETTINGS, disk=disk) as storage:
        topic = storage.topic(TOPIC)
        topic.publish("a")
        disk.fail("open", errno.EMFILE)
        with pytest.raises(ResourcesExhausted):
            payloads(topic)
        assert payloads(topic) == [b"a"]


def test_a_topic_that_cannot_be_opened_now_is_opened_later() -> None:
    disk = FaultyDisk()
    with open_storage(SETTINGS, disk=disk) as storage:
        storage.topic(TOPIC).publish("a")
    with open_storage(SETTINGS, disk=disk) as storage:
        for after in range(2):
            disk.fail("open", errno.EMFILE, after=after)
            with pytest.raises(ResourcesExhausted):
                storage.topic(TOPIC)
        assert storage.topic(TOPIC).publish("b") == 1


def test_no_descriptor_is_no_corruption_that_repair_would_cut() -> None:
    disk = FaultyDisk()
    with open_storage(SETTINGS, disk=disk) as storage:
        for _ in range(10):
            storage.topic(TOPIC).publish(bytes(20 * KIB))
    for after in range(12):
        disk.fail("open", errno.EMFILE, after=after)
        with pytest.raises(ResourcesExhausted):
            repair(SETTINGS, TOPIC, disk=disk)
        assert disk.failures_left == 0
    assert all(report.flaws == [] for report in check(disk, SETTINGS.log_folder))
    with open_storage(SETTINGS, disk=disk) as storage:
        assert len(payloads(storage.topic(TOPIC))) == 10


CHILD = """
    import os, resource, sys
    from pathlib import Path
    import frazil

    settings = frazil.Settings(data=Path(sys.argv[1]), wal=frazil.WalSettings(max_file_size=65536))
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    with frazil.open(settings) as storage:
        topic = storage.topic("/default/orders")
        topic.publish("before")
        taken = []
        try:
            while True:
                taken.append(os.dup(0))
        except OSError:
            pass
        for _ in range(40):
            topic.publish(bytes(20_000))
        for fd in taken:
            os.close(fd)
        print(len(list(topic.read("earliest"))), topic.stats().segments)
"""


def test_a_process_out_of_descriptors_still_has_some_for_the_next_segments(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CHILD), str(tmp_path)],
        capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert ran.stderr == ""
    rows, segments = map(int, ran.stdout.split())
    assert rows == 41
    assert segments > 8
