"""Ack level `object`: rows are acknowledged, and readable, once they are in the object store."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from acked_servers import DATA, SECONDS, TOPIC, Gate, Serve, Server, eventually, payloads, stored

from frazil.core.clock import SystemClock
from frazil.core.errors import LogFailed, OutcomeUnknown, Overloaded
from frazil.core.sequences import Sent
from frazil.core.settings import make_settings
from frazil.core.stored_objects import StoredObject
from frazil.log import object_log
from frazil.log.read.cache import ReplayCache
from frazil.log.storage import open_storage
from frazil.log.write import flights
from frazil.meta.sqlite import SqliteStore
from frazil.objects.acks import AckedLogs
from frazil.objects.epoch import EpochClaim
from frazil.objects.known import ObjectsOfLogs
from frazil.objects.manifests import Manifests
from frazil.objects.opening import open_objects
from frazil.testing import FaultyDisk
from parts.faulty_store import FaultyStore

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
"""Threads of servers that were killed find their disk gone."""


@pytest.fixture
def store(tmp_path: Path) -> FaultyStore:
    where = {"type": "memory", "bucket": str(tmp_path)}
    return FaultyStore(open_objects(make_settings({"objects": {"enabled": True, "store": where}})))


def test_an_acknowledged_row_is_in_the_store(serve: Serve, store: FaultyStore) -> None:
    topic = serve().made()
    for number in range(20):
        assert topic.publish(b"%d" % number) == number
        assert stored(store, topic) == number + 1
    assert payloads(topic) == [b"%d" % number for number in range(20)]
    assert topic.publish_many([b"a", b"b"]).end == stored(store, topic) == 22


def test_a_row_is_not_readable_before_it_is_stored(
    serve: Serve, store: FaultyStore, threads: ThreadPoolExecutor
) -> None:
    topic = serve().made()
    topic.publish(b"first")
    gate = Gate(store)
    waiting = threads.submit(topic.publish, b"second")
    assert gate.reached.wait(SECONDS)
    eventually(lambda: topic.log.written_end == 2)
    assert payloads(topic) == [b"first"]
    assert (topic.log.visible_end, topic.log.durable_end, topic.log.flush()) == (1, 1, 1)
    assert topic.stats().unsynced == 1
    follower = topic.read(1, follow=True)
    assert not waiting.done()
    gate.open()
    assert waiting.result(SECONDS) == 1
    assert next(follower).payload == b"second"


def test_messages_gather_into_one_object(serve: Serve, store: FaultyStore, threads: ThreadPoolExecutor) -> None:
    topic = serve(gather_ms=200).made()
    topic.publish(b"first")
    before = len(store.creates)
    waiting = [threads.submit(topic.publish, b"x") for _ in range(20)]
    assert sorted(one.result(SECONDS) for one in waiting) == list(range(1, 21))
    assert len(store.creates) - before <= 2


def test_a_large_group_is_stored_at_once(serve: Serve, store: FaultyStore) -> None:
    topic = serve(gather_ms=10_000, gather_bytes_max=64 * 1024).made()
    assert topic.publish_many([b"x" * 1024] * 100).end == 100  # in ten seconds otherwise
    assert stored(store, topic) == 100


def test_groups_travel_together_and_settle_in_order(
    serve: Serve, store: FaultyStore, threads: ThreadPoolExecutor
) -> None:
    topic = serve(parallel_max=3).made()
    topic.publish(b"first")
    gate = Gate(store, lambda name: name.endswith("00001"))
    waiting: list[Future[int]] = []
    for number in range(1, 6):
        waiting.append(threads.submit(topic.publish, b"%d" % number))
        eventually(lambda end=number + 1: topic.log.written_end == min(end, 4))  # type: ignore[misc]
    assert gate.reached.wait(SECONDS)
    eventually(lambda: store.at_once == 1 and len(store.creates) == 5)  # two have arrived, and must not count yet
    assert not any(one.done() for one in waiting)
    assert topic.log.durable_end == 1
    gate.open()
    assert sorted(one.result(SECONDS) for one in waiting) == [1, 2, 3, 4, 5]
    assert payloads(topic)[0] == b"first"
    assert stored(store, topic) == 6


def test_a_lost_answer_finds_its_own_object(serve: Serve, store: FaultyStore) -> None:
    topic = serve().made()
    topic.publish(b"first")
    for number in range(1, 5):
        store.loses_answers = 1
        assert topic.publish(b"%d" % number) == number
    assert payloads(topic) == [b"first", b"1", b"2", b"3", b"4"]
    assert stored(store, topic) == 5


def test_a_store_that_is_away_acknowledges_nothing_and_loses_nothing(
    serve: Serve, store: FaultyStore, threads: ThreadPoolExecutor
) -> None:
    topic = serve().made()
    topic.publish(b"first")
    store.is_away = True
    waiting = threads.submit(topic.publish, b"second")
    with pytest.raises(OutcomeUnknown):
        waiting.result(SECONDS)
    with pytest.raises(Overloaded):
        topic.publish(b"third")
    assert payloads(topic) == [b"first"]
    assert "it is away" in str(topic.stats().failed)
    store.is_away = False
    eventually(lambda: topic.log.durable_end == 2)  # by itself
    assert topic.publish(b"fourth") == 2
    assert topic.stats().failed is None
    assert payloads(topic) == [b"first", b"second", b"fourth"]


def test_a_store_that_is_silent_holds_no_caller_longer_than_the_limit(
    serve: Serve, store: FaultyStore, threads: ThreadPoolExecutor
) -> None:
    """Its requests neither succeed nor fail."""
    topic = serve(parallel_max=1).made()
    topic.publish(b"first")
    gate = Gate(store)
    waiting = threads.submit(topic.publish, b"second")
    assert gate.reached.wait(SECONDS)
    queued = threads.submit(topic.publish, b"third")
    with pytest.raises(OutcomeUnknown):
        waiting.result(SECONDS / 4)
    with pytest.raises(Overloaded):
        queued.result(SECONDS / 4)
    assert "no answer" in str(topic.stats().failed)
    gate.open()
    eventually(lambda: topic.log.durable_end == 2)
    assert topic.publish(b"fourth") == 2
    assert topic.stats().failed is None
    assert payloads(topic) == [b"first", b"second", b"fourth"]


def test_a_process_that_was_paused_reads_the_answers_before_it_calls_the_outcome_unknown(
    serve: Serve, store: FaultyStore, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clock has gone on. The object is stored long since, or the log belongs to another process."""
    ahead = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + ahead[0])
    topic = serve().made()
    topic.publish(b"a")
    monkeypatch.setattr(flights, "time", clock)
    monkeypatch.setattr(object_log, "time", clock)
    gate = Gate(store)
    waiting = threads.submit(topic.publish, b"b")
    assert gate.reached.wait(SECONDS)
    ahead[0] = 30.0
    threading.Event().wait(1.0)  # twice the time after which the outcome is unknown
    assert not waiting.done()
    gate.open()
    assert waiting.result(SECONDS) == 1


def test_a_store_that_is_silent_when_a_topic_begins_holds_no_caller_longer_than_the_limit(
    serve: Serve, store: FaultyStore, threads: ThreadPoolExecutor
) -> None:
    topic = serve().made()
    gate = Gate(store)
    with pytest.raises(Overloaded):
        threads.submit(topic.publish, b"first").result(SECONDS / 4)
    gate.open()
    eventually(lambda: topic.stats().failed is None)
    assert topic.publish(b"second") == 0


def test_no_acknowledgement_waits_for_the_metadata_store(
    serve: Serve, threads: ThreadPoolExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Manifests are stored later: a listing of the object store does without them."""
    monkeypatch.setattr("frazil.objects.acks.RECORD_INTERVAL_US", 0)
    server, hangs, goes_on = serve(), threading.Event(), threading.Event()
    with contextlib.closing(SqliteStore(tmp_path / "meta.db")) as meta:
        manifests = server.objects.manifests = Manifests(meta)
        topic, stores = server.made(), manifests.put

        def put(objects: Iterable[StoredObject]) -> None:
            if waiting := list(objects):
                hangs.set()
                assert goes_on.wait(SECONDS)
                stores(waiting)

        monkeypatch.setattr(manifests, "put", put)
        assert [threads.submit(topic.publish, b"x").result(SECONDS / 4) for _ in range(6)] == [0, 1, 2, 3, 4, 5]
        assert hangs.wait(SECONDS)
        goes_on.set()
        server.storage.close()
        assert [one.end for one in manifests.of(topic.log.log_id)] == [1, 2, 3, 4, 5, 6]


def test_a_numbered_batch_whose_outcome_was_unknown_is_stored_once(
    serve: Serve, store: FaultyStore, threads: ThreadPoolExecutor
) -> None:
    topic = serve().made()
    topic.publish(b"first")
    state = topic.open_producer("till")
    sent = Sent("till", state.epoch, 0)
    store.is_away = True
    with pytest.raises(OutcomeUnknown):
        threads.submit(topic.publish_many, [b"a", b"b"], sent=sent).result(SECONDS)
    store.is_away = False
    eventually(lambda: topic.log.durable_end == 3)
    assert topic.publish_many([b"a", b"b"], sent=sent).start == 1
    assert topic.publish_many([b"c"], sent=Sent("till", state.epoch, 2)).start == 3
    assert payloads(topic) == [b"first", b"a", b"b", b"c"]


@pytest.mark.parametrize("sent", [None, Sent("till", 0, 0)])
def test_rows_that_are_being_written_when_the_log_ends_are_not_acknowledged(
    serve: Serve, store: FaultyStore, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, sent: Sent | None
) -> None:
    """Their object would be behind a hole: those before it were given up."""
    topic = serve().made()
    topic.publish(b"first")
    log, add = topic.log, ReplayCache.add

    def ends(*given: Any) -> None:
        monkeypatch.undo()
        log._end_with(LogFailed(TOPIC, "an object could not be packed"))  # type: ignore[attr-defined]
        add(*given)

    monkeypatch.setattr(ReplayCache, "add", ends)
    with pytest.raises(OutcomeUnknown):
        threads.submit(topic.publish_many, [b"second"], sent=sent).result(SECONDS)
    assert (log.durable_end, stored(store, topic)) == (1, 1)


def test_a_full_queue_pushes_back(serve: Serve, store: FaultyStore, threads: ThreadPoolExecutor) -> None:
    server = Server(store, parallel_max=1, gather_bytes_max=64 * 1024)
    wal = {"queue_bytes_max": 256 * 1024, "batch_bytes_max": 256 * 1024, "message_bytes_max": 64 * 1024}
    server.storage.close()
    settings = make_settings(
        {"data": str(DATA), "wal": wal, "objects": {"enabled": True, "parallel_max": 1, "gather_bytes_max": 64 * 1024}}
    )
    acks = AckedLogs(settings.objects, lambda: ObjectsOfLogs(store), lambda: EpochClaim("b1"), SystemClock())
    with open_storage(settings, disk=FaultyDisk(), groups_of=lambda: acks) as storage:
        topic = storage.create_topic(TOPIC, ack="object")
        topic.publish(b"first")
        gate = Gate(store)
        waiting = [threads.submit(topic.publish, b"x" * 60_000) for _ in range(20)]
        eventually(lambda: sum(one.done() for one in waiting) > 0)
        refused = [one for one in waiting if one.done() and isinstance(one.exception(), Overloaded)]
        assert refused
        gate.open()
        kept = [one for one in waiting if one.exception(SECONDS) is None]
        assert len(payloads(topic)) == stored(store, topic) == 1 + len(kept)
