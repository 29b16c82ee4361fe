"""A log is renumbered, and the power goes before each operation of the disk: the topic is what it was, or the new one.

The disk is looked at in several of the states in which the cut may leave it, and the power goes again while the next
owner finishes the work. The table's part is in `tests/crash/test_renumber_kill.py`.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import FakeClock, FaultyDisk, abandon, opened, settings_of

from frazil import FrazilError, Settings, SyncMode
from frazil.core.names import TopicName
from frazil.core.sequences import Sent
from frazil.log.folder.catalog import TopicCatalog
from frazil.log.folder.former import FormerLog
from frazil.log.repair.recovery import recover
from frazil.log.repair.renumber_build import Renumbering, build_log
from frazil.log.repair.renumbering import build_folder, decide, finish_renumbering

TOPIC, OTHER = "/a/messages", "/a/others"
NAME = TopicName.parse(TOPIC)
CUT, TABLE_END = 4, 50
NEW_ID = "the-new-log"

Rows = list[tuple[int, bytes]]


def fill(disk: FaultyDisk, settings: Settings) -> Rows:
    """A log of several segments, in numbered and in plain batches, and another that must not notice."""
    storage = opened(disk, settings, FakeClock())
    topic = storage.topic(TOPIC)
    for number in range(12):
        payload = f"{number}:".encode() + b"x" * 20_000
        if number % 3:
            topic.publish(payload)
        else:
            topic.publish_many([payload], sent=Sent("p", 0, number // 3))
    storage.topic(OTHER).publish(b"tea")
    rows = [(message.offset, message.payload) for message in topic.read("earliest")]
    storage.close()
    return rows


def renumber(disk: FaultyDisk, settings: Settings) -> None:
    folder = settings.log_folder
    catalog = TopicCatalog(disk, folder)
    record = catalog.read(NAME)
    recovered = recover(disk, catalog.folder(NAME), record.log_id, 0, catalog.end_of(record.log_id))
    former = FormerLog(record.log_id, CUT, TABLE_END, recovered.end - CUT, 1)
    target = build_folder(folder, NEW_ID)
    build_log(disk, settings.wal, record, recovered, Renumbering(NEW_ID, former, 1), target, lambda _: None)
    decide(disk, folder, NAME, record.log_id, NEW_ID)
    finish_renumbering(disk, folder)


def kept_segments(disk: FaultyDisk, settings: Settings) -> int:
    """How many segments of the former log are kept."""
    folder = settings.log_folder / "~renumbered"
    try:
        found = [entry.name for former in disk.list(folder) for entry in disk.list(folder / former.name)]
    except FileNotFoundError:
        return 0
    return sum(name.endswith(".wal") for name in found)


def is_renumbered(disk: FaultyDisk, settings: Settings, rows: Rows) -> bool:
    """Whether the topic is the new one; it is one of the two, whole, and goes on."""
    storage = opened(disk, settings, FakeClock())
    try:
        assert storage.topics() == [TOPIC, OTHER]
        topic = storage.topic(TOPIC)
        done = topic.log.log_id == NEW_ID
        wanted = [(offset - CUT + TABLE_END, payload) for offset, payload in rows[CUT:]] if done else rows
        assert [(message.offset, message.payload) for message in topic.read("earliest")] == wanted
        assert [message.payload for message in storage.topic(OTHER).read("earliest")] == [b"tea"]
        assert topic.publish_many([rows[-3][1]], sent=Sent("p", 0, 3)).start == wanted[-3][0]  # not stored again
        assert topic.publish(b"next") == wanted[-1][0] + 1
        storage.close()
        names = {entry.name for entry in disk.list(settings.log_folder)}
        assert names & {"~renumber", "~renumbering"} == set()
        assert (kept_segments(disk, settings) == 4) is done
    finally:
        abandon(storage)
    return done


def test_a_power_cut_at_any_operation_leaves_the_former_log_or_the_new_one() -> None:
    settings = settings_of(SyncMode.ALWAYS)
    disk = FaultyDisk()
    rows = fill(disk, settings)
    results: list[bool] = []

    def look(operation: str, path: Path) -> None:
        for seed in range(4):
            image = disk.crash(random.Random(disk.operations * 1_000 + seed))
            try:
                results.append(is_renumbered(image, settings, rows))
            except BaseException as error:
                error.add_note(f"power cut before operation {disk.operations} ({operation} {path}), seed {seed}")
                raise

    disk.watch(look)
    renumber(disk, settings)
    disk.watch(None)
    assert is_renumbered(disk, settings, rows)
    assert results[0] is False
    assert results[-1] is True
    assert len(results) > 100


def test_a_second_power_cut_while_it_is_finished_loses_nothing() -> None:
    settings = settings_of(SyncMode.ALWAYS)
    disk = FaultyDisk()
    rows = fill(disk, settings)
    decided: list[FaultyDisk] = []
    disk.watch(lambda _, path: decided.append(disk.crash(random.Random(7))) if "~renumbering" in str(path) else None)
    renumber(disk, settings)
    disk.watch(None)
    images: list[FaultyDisk] = []
    for image in decided:
        image.watch(lambda *_, image=image: images.append(image.crash(random.Random(len(images)))))  # type: ignore[misc]
        TopicCatalog(image, settings.log_folder)
        image.watch(None)
    assert len(images) > 20
    assert {is_renumbered(image, settings, rows) for image in images} == {True, False}


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_an_error_of_any_operation_leaves_the_former_log_or_the_new_one(number: int) -> None:
    settings = settings_of(SyncMode.ALWAYS)
    results: list[bool] = []
    for at in itertools.count():
        disk = FaultyDisk()
        rows = fill(disk, settings)
        calls = itertools.count()

        def fail(operation: str, path: Path, calls: Iterator[int] = calls, at: int = at) -> None:
            if next(calls) == at:
                raise OSError(number, "it fails", str(path))

        disk.watch(fail)
        with contextlib.suppress(OSError, FrazilError):
            renumber(disk, settings)
        disk.watch(None)
        results.append(is_renumbered(disk.kill(), settings, rows))
        if next(calls) <= at:
            break  # there was no such call
    assert results[0] is False
    assert results[-1] is True
    assert len(results) > 40
