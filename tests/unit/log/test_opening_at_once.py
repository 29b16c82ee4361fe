"""The main thread opens a topic itself where no file needs a change; every change is made by another thread."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.core.disk import Disk, LocalDisk
from frazil.core.errors import Closed, CorruptLog
from frazil.core.settings import MIB
from frazil.log.storage import open_storage
from frazil.log.uninterrupted import is_call_unfinished, uninterrupted

TOPIC = "/default/orders"
CHANGES = {"make_folder", "sync_folder", "rename", "remove", "remove_folder", "write", "allocate", "truncate", "sync"}


class Interrupted(BaseException):
    """Stands for Ctrl-C."""


class Watched:
    """A disk, or a file of it, that notes which thread read and which one changed something."""

    def __init__(self, real: Any, readers: set[str], changers: set[str]) -> None:
        self._real, self._readers, self._changers = real, readers, changers

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            changes = name in CHANGES or args[1:] == ("create",)
            (self._changers if changes else self._readers).add(threading.current_thread().name)
            result = getattr(self._real, name)(*args)
            return Watched(result, self._readers, self._changers) if name == "open" else result

        return call


class Threads:
    def __init__(self) -> None:
        self.reading: set[str] = set()
        self.changing: set[str] = set()

    def disk(self) -> Disk:
        made: Disk = Watched(LocalDisk(), self.reading, self.changing)  # type: ignore[assignment]
        return made


MAIN = threading.main_thread().name


@pytest.fixture
def threads() -> Threads:
    return Threads()


def opened(folder: Path, threads: Threads) -> frazil.Storage:
    storage = open_storage(folder, disk=threads.disk())
    threads.reading.clear()
    threads.changing.clear()
    return storage


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A folder as a process leaves it that was killed: nothing says that its rows are durable."""
    folder = tmp_path / "killed"
    with frazil.open(tmp_path / "live") as storage:
        storage.topic(TOPIC).publish(b"tea")
        shutil.copytree(tmp_path / "live", folder)
    return folder


def test_a_topic_that_was_closed_is_opened_by_the_caller_and_nothing_is_changed(
    tmp_path: Path, threads: Threads
) -> None:
    with frazil.open(tmp_path) as storage:
        storage.topic(TOPIC).publish(b"tea")
    with opened(tmp_path, threads) as storage:
        topic = storage.topic(TOPIC)
        assert (threads.reading, threads.changing) == ({MAIN}, set())
        assert storage.topic(TOPIC) is topic
        assert topic.publish(b"milk") == 1
        assert [message.payload for message in topic.read()] == [b"tea", b"milk"]
        assert MAIN not in threads.changing


def test_a_topic_that_needs_recovery_is_changed_by_another_thread_alone(killed: Path, threads: Threads) -> None:
    (segment,) = killed.rglob("*.wal")
    with segment.open("r+b") as file:  # a frame that was cut off
        data = file.read()
        file.seek(len(data.rstrip(b"\0")) + 64 & ~7)
        file.write(b"torn")
    with opened(killed, threads) as storage:
        topic = storage.topic(TOPIC)
        assert topic.log.torn is not None
        assert threads.changing
        assert topic.publish(b"milk") == 1
        storage.set_retention(TOPIC, frazil.RetentionSettings(bytes=1))
        storage.topic("/default/new").publish(b"x")
        storage.delete_topic("/default/new")
        storage.maintain()
        topic.sync()
    assert MAIN not in threads.changing


def test_a_large_segment_is_read_once_and_not_by_the_main_thread(tmp_path: Path, threads: Threads) -> None:
    with frazil.open(tmp_path) as storage:
        storage.topic(TOPIC).publish_many([bytes(MIB), b"tea"])
    with opened(tmp_path, threads) as storage:
        storage.topic(TOPIC)
        assert not threads.changing
        assert threads.reading - {MAIN}


def test_what_is_wrong_with_a_topic_is_told_as_before(killed: Path) -> None:
    (segment,) = killed.rglob("*.wal")
    segment.write_bytes(b"\1" * 64)
    with frazil.open(killed) as storage:
        for _ in range(2):
            with pytest.raises(CorruptLog, match="schema frame"):
                storage.topic(TOPIC)
        assert storage.topics() == [TOPIC]


def test_a_topic_that_another_thread_opens_meanwhile_is_opened_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with frazil.open(tmp_path) as storage:
        storage.topic(TOPIC).publish(b"tea")
    with frazil.open(tmp_path) as storage:
        make, others = storage._made_topic, []

        def meanwhile(name: Any, disk: Disk) -> Any:
            made = make(name, disk)
            if threading.current_thread() is threading.main_thread():
                thread = threading.Thread(target=lambda: others.append(storage.topic(TOPIC)))
                thread.start()
                thread.join(30)
            return made

        monkeypatch.setattr(storage, "_made_topic", meanwhile)
        assert [storage.topic(TOPIC)] == others


def test_a_handler_may_close_the_storage_while_a_topic_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with frazil.open(tmp_path) as storage:
        storage.topic(TOPIC).publish(b"tea")
    storage = frazil.open(tmp_path)
    make = storage._made_topic

    def interrupted(name: Any, disk: Disk) -> Any:
        os.kill(os.getpid(), signal.SIGALRM)
        return make(name, disk)

    monkeypatch.setattr(storage, "_made_topic", interrupted)
    before = signal.signal(signal.SIGALRM, lambda *_: storage.close())
    try:
        with pytest.raises(Closed):
            storage.topic(TOPIC)
    finally:
        signal.signal(signal.SIGALRM, before)
    with frazil.open(tmp_path) as storage:
        assert storage.topic(TOPIC).publish(b"milk") == 1


def test_a_call_that_was_interrupted_ends_before_a_topic_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = frazil.open(tmp_path)
    old = storage.topic(TOPIC)
    delete, going, interrupted = storage._delete_topic, threading.Event(), threading.Event()

    def slow(name: Any) -> None:
        for _ in range(3_000):  # one that comes just before the main thread waits does not wake it
            if interrupted.wait(0.01):
                break
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
        going.wait(30)
        delete(name)

    def interrupt(*_: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise Interrupted

    monkeypatch.setattr(storage, "_delete_topic", slow)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(Interrupted):
            storage.delete_topic(TOPIC)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert is_call_unfinished()
    timer = threading.Timer(0.2, going.set)
    timer.start()
    found = storage.topic(TOPIC)
    assert going.is_set()
    assert found.log.log_id != old.log.log_id
    assert not is_call_unfinished()
    timer.join()
    storage.close()


def test_only_the_main_thread_has_calls_that_are_unfinished() -> None:
    assert uninterrupted(is_call_unfinished) is False
    assert not is_call_unfinished()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one that was raised in a callback
def test_topics_are_whole_however_often_their_opening_is_interrupted(tmp_path: Path) -> None:
    names = [f"/default/t{number}" for number in range(40)]
    with frazil.open(tmp_path) as storage:
        for name in names:
            storage.topic(name).publish(b"tea")
    inside, count = False, 0

    def interrupt(*_: object) -> None:
        nonlocal inside
        signal.setitimer(signal.ITIMER_REAL, 0.0007)
        if inside:
            inside = False
            raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    end = time.monotonic() + 1.5
    published = 0
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0007)
        while time.monotonic() < end:
            published += 1
            with frazil.open(tmp_path) as storage:
                for name in names:
                    try:
                        inside = True
                        storage.topic(name)
                        inside = False
                    except Interrupted:
                        count += 1
                for name in names[:2]:
                    assert storage.topic(name).publish(b"more") == published
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert count
    with frazil.open(tmp_path) as storage:
        assert [storage.topic(name).stats().end for name in names] == [published + 1] * 2 + [1] * (len(names) - 2)
