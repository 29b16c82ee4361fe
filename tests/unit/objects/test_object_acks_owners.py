"""Ack level `object` across restarts, over files that lost rows, and with two owners."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from acked_servers import DATA, SECONDS, TOPIC, Gate, Serve, Server, eventually, payloads, stored

from frazil.core.clock import SystemClock
from frazil.core.disk import Disk, File
from frazil.core.errors import (
    Closed,
    LogFailed,
    LogFenced,
    ObjectDamaged,
    ObjectStoreUnavailable,
    OutcomeUnknown,
    ResourcesExhausted,
)
from frazil.core.rows import ENVELOPE
from frazil.core.sequences import Sent
from frazil.core.settings import AckLevel, SyncMode, make_settings
from frazil.log.folder.adoption import AdoptedLog
from frazil.log.format.frames import SegmentHead
from frazil.log.format.records import open_to_read
from frazil.log.write.producers import Producers
from frazil.log.write.stored_groups import FrameGroup
from frazil.objects import acks
from frazil.objects.epoch import EpochClaim, begin_epoch
from frazil.objects.known import ObjectsOfLogs
from frazil.objects.loading import load_objects
from frazil.objects.opening import open_objects
from frazil.objects.recovery import Stated, continuation
from parts.faulty_store import FaultyStore

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
"""Threads of servers that were killed find their disk gone."""


@pytest.fixture
def store(tmp_path: Path) -> FaultyStore:
    where = {"type": "memory", "bucket": str(tmp_path)}
    return FaultyStore(open_objects(make_settings({"objects": {"enabled": True, "store": where}})))


# --- restarts


def test_a_killed_process_loses_nothing_that_was_acknowledged(serve: Serve, store: FaultyStore) -> None:
    server = serve()
    topic = server.made()
    for number in range(10):
        topic.publish(b"%d" % number)
    again = server.killed().topic()
    assert payloads(again) == [b"%d" % number for number in range(10)]
    assert again.publish(b"more") == 10


def test_rows_of_the_files_that_were_not_stored_are_stored_after_a_restart(
    serve: Serve, store: FaultyStore, threads: ThreadPoolExecutor
) -> None:
    server = serve()
    topic = server.made()
    state = topic.open_producer("till")
    topic.publish_many([b"a"], sent=Sent("till", state.epoch, 0))
    store.is_away = True
    waiting = threads.submit(topic.publish_many, [b"b", b"c"], sent=Sent("till", state.epoch, 1))
    eventually(lambda: topic.log.written_end == 3)
    disk = server.kill()
    assert stored(store, topic) == 1
    store.is_away = False
    again = serve(disk).topic()
    eventually(lambda: again.log.durable_end == 3)
    assert payloads(again) == [b"a", b"b", b"c"]
    assert again.publish_many([b"b", b"c"], sent=Sent("till", state.epoch, 1)).start == 1  # it is known
    assert again.publish_many([b"d"], sent=Sent("till", state.epoch, 3)).start == 3
    assert stored(store, again) == 4
    assert waiting.exception(SECONDS) is not None


def test_a_duplicate_of_rows_found_in_the_files_waits_until_they_are_stored(
    serve: Serve, store: FaultyStore, threads: ThreadPoolExecutor
) -> None:
    server = serve()
    topic = server.made()
    state = topic.open_producer("till")
    topic.publish_many([b"a"], sent=Sent("till", state.epoch, 0))
    store.is_away = True
    threads.submit(topic.publish_many, [b"b"], sent=Sent("till", state.epoch, 1))
    eventually(lambda: topic.log.written_end == 2)
    disk = server.kill()
    store.is_away = False
    gate = Gate(store, lambda name: name.endswith("00001") and "/00000002/" in name)
    again = serve(disk).topic()
    assert gate.reached.wait(SECONDS)
    waiting = threads.submit(again.publish_many, [b"b"], sent=Sent("till", state.epoch, 1))
    assert payloads(again) == [b"a"]
    assert not waiting.done()
    gate.open()
    assert waiting.result(SECONDS).start == 1
    assert payloads(again) == [b"a", b"b"]


def test_a_duplicate_of_rows_found_in_the_files_waits_no_longer_than_the_limit(
    serve: Serve, store: FaultyStore, threads: ThreadPoolExecutor
) -> None:
    server = serve()
    topic = server.made()
    state = topic.open_producer("till")
    topic.publish_many([b"a"], sent=Sent("till", state.epoch, 0))
    store.is_away = True
    threads.submit(topic.publish_many, [b"b"], sent=Sent("till", state.epoch, 1))
    eventually(lambda: topic.log.written_end == 2)
    disk = server.kill()
    store.is_away = False
    gate = Gate(store, lambda name: name.endswith("00001") and "/00000002/" in name)
    again = serve(disk).topic()
    assert gate.reached.wait(SECONDS)
    waiting = threads.submit(again.publish_many, [b"b"], sent=Sent("till", state.epoch, 1))
    with pytest.raises(OutcomeUnknown):
        waiting.result(SECONDS / 4)
    gate.open()
    eventually(lambda: again.log.durable_end == 2)
    assert again.publish_many([b"b"], sent=Sent("till", state.epoch, 1)).start == 1


@pytest.mark.parametrize("passes", [True, False])
def test_rows_of_the_files_that_cannot_be_read_now_are_stored_later(
    serve: Serve, store: FaultyStore, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, passes: bool
) -> None:
    """As without a free descriptor. A broken disk ends the log: nobody waits for it."""
    server = serve()
    topic = server.made()
    topic.publish(b"a")
    store.is_away = True
    threads.submit(topic.publish, b"b")
    eventually(lambda: topic.log.written_end == 2)
    disk = server.kill()
    store.is_away = False
    opens: list[str] = []

    def failing(disk: Disk, path: Path) -> File:
        opens.append(path.name)
        if len(opens) <= 2:
            raise ResourcesExhausted(str(path), "too many open files") if passes else OSError(5, "broken")
        return open_to_read(disk, path)

    monkeypatch.setattr(acks, "open_to_read", failing)
    again = serve(disk).topic()
    if passes:
        eventually(lambda: again.log.durable_end == 2)
        assert again.publish(b"c") == 2
        assert payloads(again) == [b"a", b"b", b"c"]
    else:
        eventually(lambda: again.log.failed is not None)
        with pytest.raises(LogFailed, match="broken"):
            again.publish(b"c")


def test_rows_of_the_files_that_another_owner_wrote_otherwise_are_cut_and_kept_aside(
    serve: Serve, store: FaultyStore, threads: ThreadPoolExecutor
) -> None:
    server = serve()
    topic = server.made()
    topic.publish(b"a")
    copy = server.kill()
    here = serve(copy)
    topic = here.topic()
    here.link.is_away = True
    late = threads.submit(topic.publish, b"never acknowledged")
    eventually(lambda: topic.log.written_end == 2)
    paused = here.kill()  # this folder has a row that the store has not
    store.is_away = False
    log_id = topic.log.log_id
    other = other_owner(store, log_id, [b"b", b"c"])
    assert other == 3
    once_more = serve(paused)
    again = once_more.topic()
    assert again.log.durable_end == again.log.visible_end == 3
    assert again.log.first_offset == 3
    assert again.publish(b"d") == 3
    assert payloads(again) == [b"d"]  # no tier reads objects here
    aside = [entry.name for entry in paused.list(DATA / "log/shop/orders") if entry.name.endswith(".aside")]
    assert len(aside) == 1
    assert late.exception(SECONDS) is not None
    third = serve(once_more.kill()).topic()
    assert third.log.first_offset == 3
    assert payloads(third) == [b"d"]


def test_a_row_that_was_refused_is_never_stored(serve: Serve, store: FaultyStore) -> None:
    """Another process has taken the log over, and stored nothing: the callers may have sent their rows again."""
    server = serve()
    topic = server.made()
    topic.publish(b"a")
    log_id = topic.log.log_id
    begin_epoch(ObjectsOfLogs(store.inner).of(log_id), TOPIC, EpochClaim("b2"), SystemClock(), ack="object")
    with pytest.raises(LogFenced):
        topic.publish(b"refused")
    here = serve(server.kill())
    again = here.topic()
    assert again.log.durable_end == again.log.written_end == 1
    assert again.publish(b"b") == 1
    assert payloads(again) == [b"b"]  # no tier reads objects here
    assert any(entry.name.endswith(".aside") for entry in here.disk.list(DATA / "log/shop/orders"))
    third = serve(here.kill()).topic()
    assert payloads(third) == [b"b"]


def other_owner(store: FaultyStore, log_id: str, rows: list[bytes]) -> int:
    """Take the log over with another folder, write rows, and return the end."""
    found = load_objects(store, log_id, None)
    goes_on = continuation(store, log_id, found.objects, found.end, Stated(ack=AckLevel.OBJECT))
    server = Server(store, owner="b2")
    topic = server.storage.adopt_topic(TOPIC, goes_on)
    for row in rows:
        topic.publish(row)
    server.storage.close()
    return load_objects(store, log_id, None).end


def test_files_that_lost_rows_go_on_behind_the_objects(serve: Serve, store: FaultyStore) -> None:
    """A power cut takes what the system had not written: these files are never synced."""
    server = serve()
    topic = server.made()
    for number in range(30):
        topic.publish(b"%d" % number)
    lost = 0
    for seed in range(8):
        disk = server.disk.crash(random.Random(seed))
        again = serve(disk, owner=f"seed{seed}").topic()
        end = 30 + seed
        assert again.log.durable_end == end
        assert again.publish(b"more") == end
        lost += again.log.first_offset > 0
        assert payloads(again)[-1] == b"more"
    assert lost  # in some, rows were only in the store


def test_a_store_without_the_acknowledged_rows_is_refused(serve: Serve, store: FaultyStore) -> None:
    server = serve()
    topic = server.made()
    topic.publish(b"a")
    server.storage.close()
    store.inner.delete([info.name for info in store.inner.walk(f"{topic.log.log_id}/")])
    with pytest.raises(ObjectDamaged, match="is it the right object store"):
        serve(server.disk).topic()


def test_a_topic_waits_for_the_store_to_open_and_no_other_topic_does(serve: Serve, store: FaultyStore) -> None:
    server = serve()
    server.made().publish(b"a")
    server.storage.topic("/shop/other").publish(b"other")
    server.storage.close()
    store.is_away = True
    again = serve(server.disk)
    with pytest.raises(ObjectStoreUnavailable):
        again.topic()
    assert payloads(again.storage.topic("/shop/other")) == [b"other"]
    store.is_away = False
    assert payloads(again.topic()) == [b"a"]


def test_a_new_topic_is_made_while_the_store_is_away(
    serve: Serve, store: FaultyStore, threads: ThreadPoolExecutor
) -> None:
    store.is_away = True
    topic = serve(ack_timeout_ms=60_000).made()
    waiting = threads.submit(topic.publish, b"a")
    eventually(lambda: len(store.creates) == 0 and topic.log.queued_bytes > 0)
    store.is_away = False
    assert waiting.result(SECONDS) == 0


def test_a_log_that_begins_at_a_later_offset_has_its_first_object_there(serve: Serve, store: FaultyStore) -> None:
    """As after `frazil log renumber`."""
    server = serve()
    adopted = AdoptedLog("another-log", 50, None, Producers(), 0, 0, ack=AckLevel.OBJECT)
    topic = server.storage.adopt_topic(TOPIC, adopted)
    assert topic.publish(b"a") == 50
    assert stored(store, topic) == 51
    again = server.killed().topic()
    assert (again.log.first_offset, again.log.durable_end) == (50, 51)
    assert again.publish(b"b") == 51
    assert payloads(again) == [b"a", b"b"]


def test_closing_stores_what_is_queued(serve: Serve, store: FaultyStore, threads: ThreadPoolExecutor) -> None:
    server = serve(gather_ms=5_000)
    topic = server.made()
    waiting = threads.submit(topic.publish, b"a")
    eventually(lambda: topic.log.queued_bytes > 0)
    server.storage.close()
    assert waiting.result(SECONDS) == 0
    assert stored(store, topic) == 1


def test_of_many_topics_that_are_closed_one_waits_for_a_silent_store(
    serve: Serve, store: FaultyStore, threads: ThreadPoolExecutor
) -> None:
    server = serve()
    topics = [server.storage.create_topic(f"{TOPIC}-{number}", ack="object") for number in range(5)]
    for topic in topics:
        topic.publish(b"first")
    server.acks.close_seconds_max = 0.2
    gate = Gate(store)
    waiting = [threads.submit(topic.publish, b"second") for topic in topics]
    eventually(lambda: all(topic.log.written_end == 2 for topic in topics))
    topics[0].log.close()
    assert server.acks.close_seconds_max == 0
    for topic in topics[1:]:
        topic.log.close()
    assert all(isinstance(one.exception(SECONDS), OutcomeUnknown) for one in waiting)
    gate.open()
    eventually(lambda: server.acks.close_seconds_max > 0)  # the store answers again


def test_a_put_on_its_way_is_known_after_its_log_was_closed_and_none_follows(
    serve: Serve, store: FaultyStore, threads: ThreadPoolExecutor
) -> None:
    """The objects of a deleted topic are removed once nothing more can arrive."""
    server = serve()
    topic = server.made()
    topic.publish(b"a")
    log_id = topic.log.log_id
    taken = server.acks.taken(log_id)
    assert taken is not None
    gate = Gate(store)
    group = FrameGroup(1, 2, SegmentHead(log_id, TOPIC, SyncMode.NONE, ENVELOPE), b"", (), 0, 0)
    on_way = threads.submit(taken.put, group, b"an object")
    assert gate.reached.wait(SECONDS)
    assert not server.acks.is_busy(log_id)
    server.storage.admission.withhold(topic.log.name)
    assert server.acks.is_busy(log_id)
    gate.open()
    on_way.result(SECONDS)
    assert not server.acks.is_busy(log_id)
    with pytest.raises(ObjectStoreUnavailable, match="closed"):
        taken.put(group, b"an object")


def test_numbered_rows_on_their_way_when_their_log_is_closed_may_be_sent_again(
    serve: Serve, store: FaultyStore, threads: ThreadPoolExecutor
) -> None:
    """As when another broker gets the topic: it knows what is stored."""
    server = serve()
    topic = server.made()
    state = topic.open_producer("till")
    topic.publish(b"a")
    gate = Gate(store)
    plain = threads.submit(topic.publish, b"plain")
    assert gate.reached.wait(SECONDS)
    numbered = threads.submit(topic.publish_many, [b"numbered"], sent=Sent("till", state.epoch, 0))
    eventually(lambda: topic.log.written_end == 3)
    server.acks.close_seconds_max = 0.1
    server.storage.admission.withhold(topic.log.name)
    assert isinstance(plain.exception(SECONDS), OutcomeUnknown)
    assert isinstance(numbered.exception(SECONDS), Closed)
    gate.open()


# --- two owners


def test_a_log_has_one_epoch_in_a_process_whoever_begins_it(serve: Serve, store: FaultyStore) -> None:
    server = serve()
    topic = server.made()
    topic.publish(b"a")
    log_id, claim = topic.log.log_id, EpochClaim("b1", "http://b1")
    begun = begin_epoch(server.objects.of(log_id), TOPIC, claim, SystemClock())
    assert begun is server.objects.of(log_id).epoch
    assert topic.publish(b"b") == begun.end - 1 == 1
    server.storage.admission.withhold(topic.log.name)
    assert begin_epoch(server.objects.of(log_id), TOPIC, claim, SystemClock()).number == begun.number + 1
    with pytest.raises(LogFenced):
        begun.put(2, 3, b"late", None, None)


def test_a_fenced_log_acknowledges_nothing_more_and_says_who_owns_it(serve: Serve, store: FaultyStore) -> None:
    topic = serve().made()
    topic.publish(b"a")
    assert other_owner(store, topic.log.log_id, [b"b"]) == 2
    for _ in range(3):
        with pytest.raises(LogFenced) as refused:
            topic.publish(b"late")
        assert refused.value.fields["owner"] == "b2"
        assert refused.value.fields["address"] == "http://b2"
    assert payloads(topic) == [b"a"]
    assert "b2" in str(topic.stats().failed)
    assert topic.log.durable_end == 1


def test_of_two_owners_that_both_believe_the_store_decides(
    serve: Serve, store: FaultyStore, threads: ThreadPoolExecutor
) -> None:
    """The world stops between the check of the first owner and its write; meanwhile another one takes the log over."""
    server = serve()
    topic = server.made()
    topic.publish(b"a")
    log_id = topic.log.log_id
    gate = Gate(store, lambda name: "/00000001/" in name and name.endswith("00001"))
    late = [threads.submit(topic.publish, b"late")]
    assert gate.reached.wait(SECONDS)  # it was checked that nobody else owns the log, and the write is on its way
    late += [threads.submit(topic.publish, b"later")]
    eventually(lambda: topic.log.written_end == 3)
    inner = FaultyStore(store.inner)
    assert other_owner(inner, log_id, [b"b", b"c", b"d"]) == 4
    gate.open()
    for one in late:
        assert isinstance(one.exception(SECONDS), LogFenced)
    assert payloads(topic) == [b"a"]
    with pytest.raises(LogFenced):
        topic.publish(b"again")
    again = serve(server.kill()).topic()
    assert again.log.durable_end == 4
    assert again.publish(b"e") == 4


def test_numbered_rows_on_their_way_to_a_log_that_is_taken_over_may_be_sent_again(
    serve: Serve, store: FaultyStore, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two objects are stored before the fence, whose answers come after the refusal of the third one."""
    topic, create, answers = serve().made(), store.inner.create, threading.Event()
    state = topic.open_producer("till")

    def answers_late(name: str, content: bytes | memoryview) -> str | None:
        etag = create(name, content)
        if name.endswith(("00001", "00002")):
            assert answers.wait(SECONDS)
        return etag

    topic.publish(b"a")
    monkeypatch.setattr(store.inner, "create", answers_late)
    gate = Gate(store, lambda name: name.endswith("00003"))
    found = []
    for end, sent in [(2, None), (3, Sent("till", state.epoch, 0)), (4, None)]:
        found.append(threads.submit(topic.publish_many, [b"row"], sent=sent))
        eventually(lambda end=end: topic.log.written_end == end)  # type: ignore[misc]
    assert gate.reached.wait(SECONDS)
    eventually(lambda: stored(store, topic) == 3)
    assert other_owner(FaultyStore(store.inner), topic.log.log_id, [b"b"]) == 4
    gate.open()
    plain, numbered, refused = (one.exception(SECONDS) for one in found)
    assert isinstance(plain, OutcomeUnknown), "if it is sent again, it may be there twice"
    assert isinstance(numbered, LogFenced), "its owner knows the number"
    assert isinstance(refused, LogFenced)
    answers.set()


def test_typed_rows_are_stored_with_their_schema(serve: Serve, store: FaultyStore) -> None:
    schema = pa.schema([pa.field("n", pa.int64())])
    server = serve()
    topic = server.storage.create_topic(TOPIC, schema=schema, ack="object")
    topic.publish_many(pa.record_batch([pa.array([1, 2, 3], pa.int64())], schema=schema))
    wider = pa.schema([pa.field("n", pa.int64()), pa.field("m", pa.string())])
    server.storage.change_schema(TOPIC, wider)
    rows = pa.record_batch([pa.array([4], pa.int64()), pa.array(["x"])], schema=wider)
    assert topic.publish_many(rows).start == 3
    assert stored(store, topic) == 4
    again = server.killed().topic()
    assert [value for batch in again.read_batches() for value in batch.column("n").to_pylist()] == [1, 2, 3, 4]
