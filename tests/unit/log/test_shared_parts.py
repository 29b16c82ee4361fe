"""What topics share: the replay cache, open files, committers, and what an interrupted caller leaves behind."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path

import pytest

import frazil
from frazil.core.rows import message_batch
from frazil.core.settings import KIB, SyncMode
from frazil.log.read.cache import CachedBatch, ReplayCache, TopicCache
from frazil.log.write.commit_pool import CommitPool


def cached(offset: int, rows: int) -> CachedBatch:
    batch = message_batch([b"x"] * rows, [None] * rows, [None] * rows, [None] * rows, 1)
    return CachedBatch(offset, offset + rows, batch.serialize(), batch.schema)


def test_the_cache_finds_exactly_what_it_holds_and_stays_within_its_bytes() -> None:
    rng = random.Random(5)
    cache = ReplayCache(60_000)
    topics = [TopicCache(cache) for _ in range(3)]
    ends = [0, 0, 0]
    for _ in range(400):
        which = rng.randrange(3)
        batch = cached(ends[which], rng.randint(1, 5))
        ends[which] = batch.end
        cache.add(topics[which], batch)
        assert cache.used_bytes <= 60_000
        first = topics[which].first_offset
        assert first is not None
        for offset in range(ends[which]):
            found = topics[which].find(offset)
            assert (found is not None) == (offset >= first)
            if found is not None:
                assert found.offset <= offset < found.end
        assert topics[which].find(ends[which]) is None
    cache.forget(topics[0])
    assert topics[0].find(ends[0] - 1) is None
    assert topics[1].find(ends[1] - 1) is not None


def test_the_cache_stays_within_its_bytes_and_within_the_messages_of_each_topic() -> None:
    rng = random.Random(6)
    cache = ReplayCache(60_000, 12)
    topics = [TopicCache(cache) for _ in range(30)]
    ends = [0] * len(topics)
    for _ in range(2_000):
        which = rng.randrange(len(topics))
        batch = cached(ends[which], rng.randint(1, 5))
        ends[which] = batch.end
        cache.add(topics[which], batch)
        held = [[offset for offset in range(end) if each.find(offset)] for each, end in zip(topics, ends, strict=True)]
        assert max(map(len, held)) <= 12
        assert cache.used_bytes <= 60_000
        assert held[which][-batch.end + batch.offset :] == list(range(batch.offset, batch.end))
        for each, offsets in zip(topics, held, strict=True):
            assert each.messages == len(offsets)
    for each in topics:
        cache.forget(each)
    assert cache.used_bytes == 0


def test_a_batch_of_more_messages_than_the_cache_may_hold_is_not_kept() -> None:
    cache = ReplayCache(1_000_000, 12)
    topic = TopicCache(cache)
    cache.add(topic, cached(0, 12))
    cache.add(topic, cached(12, 13))
    assert topic.find(11) is not None
    assert topic.find(12) is None
    cache.add(topic, cached(25, 1))
    assert (topic.find(11), topic.first_offset) == (None, 25)


def test_the_newest_messages_of_each_topic_are_read_from_the_cache_and_older_ones_from_files(tmp_path: Path) -> None:
    settings = frazil.Settings(data=tmp_path, wal=frazil.WalSettings(cache_capacity=100, sync_mode=SyncMode.NONE))
    with frazil.open(settings) as storage:
        topics = [storage.topic(f"/default/{name}") for name in ("a", "b")]
        for topic in topics:
            for number in range(300):
                topic.publish(str(number).encode())
        for topic in topics:
            assert [message.payload for message in topic.read(200, end=300)] == [b"%d" % n for n in range(200, 300)]
        assert storage.metrics.reads_from_files == 0
        assert [message.payload for message in topics[0].read(0, end=300)] == [b"%d" % n for n in range(300)]
        assert storage.metrics.reads_from_files > 0


def test_segments_lie_in_the_folder_that_dir_and_file_name_give(tmp_path: Path) -> None:
    wal = frazil.WalSettings(dir=tmp_path / "wal", file_name="wal.log")
    settings = frazil.Settings(data=tmp_path / "data", wal=wal)
    for _ in range(2):
        with frazil.open(settings) as storage:
            storage.topic("/default/orders").publish(b"x")
    with frazil.open(settings) as storage:
        assert len(list(storage.topic("/default/orders", create=False).read())) == 2
    assert (tmp_path / "wal/wal.log/default/orders/00000000000000000000.wal").is_file()
    assert not (tmp_path / "data/log").exists()


def test_one_process_owns_all_of_dir(tmp_path: Path) -> None:
    """Else one that gives no file name would take another's log for a namespace of its own."""
    wal = frazil.WalSettings(dir=tmp_path / "wal", file_name="one.log")
    other = frazil.Settings(data=tmp_path / "two", wal=wal.model_copy(update={"file_name": None}))
    with frazil.open(frazil.Settings(data=tmp_path / "one", wal=wal)), pytest.raises(frazil.FolderInUse):
        frazil.open(other)


def test_hot_reads_touch_no_file(tmp_path: Path) -> None:
    with frazil.open(tmp_path) as storage:
        topic = storage.topic("/default/hot")
        topic.publish_many([b"x"] * 100)
        assert len(list(topic.read())) == 100
        assert storage.metrics.reads_from_files == 0
        assert storage.metrics.reads_cached > 0


def test_more_topics_than_open_files_can_be_written_in_turn(tmp_path: Path) -> None:
    settings = frazil.Settings(data=tmp_path, wal=frazil.WalSettings(open_files_max=4, cache_capacity=0))

    def open_segments() -> int:
        links = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
        return sum(link.endswith(".wal") and Path(link).is_relative_to(tmp_path) for link in links)

    with frazil.open(settings) as storage:
        topics = [storage.topic(f"/default/t{index}") for index in range(40)]
        for round_number in range(3):
            for topic in topics:
                assert topic.publish(b"%d" % round_number) == round_number
                assert open_segments() <= 4
        for topic in topics:
            assert [message.payload for message in topic.read()] == [b"0", b"1", b"2"]


def test_idle_topics_have_no_thread_of_their_own(tmp_path: Path) -> None:
    with frazil.open(tmp_path) as storage:
        before = threading.active_count()
        for index in range(300):
            storage.topic(f"/default/t{index}").publish(b"x")
        assert threading.active_count() <= before + storage.settings.wal.committers


class NoThreads:
    """The system has no thread to give, for as long as `short` says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.short = False
        start = threading.Thread.start

        def refusing(thread: threading.Thread) -> None:
            if self.short and thread.name.startswith(("frazil-commit", "frazil-keeper")):
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refusing)


@pytest.mark.timeout(60)
def test_where_no_thread_can_be_started_publishing_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = NoThreads(monkeypatch)
    with frazil.open(tmp_path) as storage:
        topic = storage.topic("/default/a")
        threads.short = True
        assert [topic.publish(b"x") for _ in range(3)] == [0, 1, 2]
        threads.short = False
        assert [topic.publish(b"x") for _ in range(3)] == [3, 4, 5]
        threads.short = True
        assert storage.topic("/default/b").publish(b"x") == 0


def test_a_folder_that_could_not_be_opened_for_want_of_a_thread_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = NoThreads(monkeypatch)
    threads.short = True
    with pytest.raises(RuntimeError, match="can't start new thread"):
        frazil.open(tmp_path)
    threads.short = False
    with frazil.open(tmp_path) as storage:
        assert storage.topic("/default/a").publish(b"x") == 0


def test_the_pool_runs_everything_and_grows_only_when_busy() -> None:
    pool = CommitPool(3)
    release = threading.Event()
    started = threading.Semaphore(0)
    done = []

    def wait() -> None:
        started.release()
        release.wait()

    for _ in range(3):
        pool.submit(wait)
    for _ in range(3):
        assert started.acquire(timeout=10)  # three at once: a thread for each
    for index in range(20):
        pool.submit(lambda index=index: done.append(index))
    release.set()
    pool.close()
    assert sorted(done) == list(range(20))


class Interrupted(BaseException):
    """Stands for Ctrl-C."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one that was raised in a callback
def test_an_interrupted_caller_does_not_leave_the_others_waiting(tmp_path: Path) -> None:
    with frazil.open(tmp_path) as storage:
        topic = storage.topic("/default/interrupt")
        topic.publish(b"0")

        def interrupt(signum: int, frame: object) -> None:
            raise Interrupted

        before = signal.signal(signal.SIGALRM, interrupt)
        published = 0

        def publish_on() -> None:
            nonlocal published
            while True:
                topic.publish(b"x" * KIB)
                published += 1

        try:
            # again and again: Python ignores what is raised within a callback of a weak reference
            signal.setitimer(signal.ITIMER_REAL, 0.02, 1)
            with pytest.raises(Interrupted):
                publish_on()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        outcome: list[object] = []

        def publish_again() -> None:
            try:
                outcome.append(topic.publish(b"after"))
            except frazil.LogFailed as error:
                outcome.append(error)

        thread = threading.Thread(target=publish_again)
        thread.start()
        thread.join(30)
        assert not thread.is_alive(), "a later publisher waits for a commit that nobody does"
        assert outcome
    with frazil.open(tmp_path) as storage:
        assert storage.topic("/default/interrupt").stats().end >= 1 + published
