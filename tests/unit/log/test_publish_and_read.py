"""The plain way through the log: what is published is read back, from anywhere, once and in order."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import frazil
from frazil.core.settings import KIB
from frazil.log.folder.ownership import OWNER_FILE, owner_of


@pytest.fixture(params=["folder", "memory"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "data" if request.param == "folder" else None


def small_segments(where: Path | None, **wal: object) -> frazil.Settings:
    return frazil.Settings(data=where, wal=frazil.WalSettings(max_file_size=64 * KIB, **wal))


def test_a_message_comes_back_with_all_that_was_given(where: Path | None) -> None:
    with frazil.open(where) as storage:
        topic = storage.topic("/default/orders")
        assert topic.publish(b"\x00tea\xff", key="anna", attributes={"size": "big", "": "ü"}) == 0
        (message,) = topic.read()
    assert message.offset == 0
    assert message.payload == b"\x00tea\xff"
    assert message.key == b"anna"
    assert message.attributes == {"size": "big", "": "ü"}
    assert message.publish_time == message.append_time


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 64, 1024, 65536, 65537])
def test_payloads_of_every_length_come_back_byte_for_byte(where: Path | None, length: int) -> None:
    payload = bytes(index * 7 % 256 for index in range(length))
    with frazil.open(where) as storage:
        topic = storage.topic("/default/lengths")
        topic.publish(payload)
        topic.publish_many([payload, frazil.Outgoing(payload, key=b"k")])
        assert [message.payload for message in topic.read()] == [payload] * 3


def test_offsets_go_on_over_restarts_and_segments(tmp_path: Path) -> None:
    settings = small_segments(tmp_path)
    expected = []
    for round_number in range(3):
        with frazil.open(settings) as storage:
            topic = storage.topic("/default/orders")
            for index in range(40):
                payload = b"%d-%d-" % (round_number, index) + bytes(4 * KIB)
                assert topic.publish(payload) == len(expected)
                expected.append(payload)
    with frazil.open(settings) as storage:
        topic = storage.topic("/default/orders")
        assert topic.stats().segments > 3
        messages = list(topic.read())
        assert [message.offset for message in messages] == list(range(120))
        assert [message.payload for message in messages] == expected


@pytest.mark.parametrize("cache_bytes", [0, 100 * KIB, 10_000 * KIB])
def test_every_start_and_end_gives_exactly_that_range(tmp_path: Path, cache_bytes: int) -> None:
    with frazil.open(small_segments(tmp_path, cache_bytes=cache_bytes)) as storage:
        topic = storage.topic("/default/ranges")
        count = 0
        while count < 60:  # frames of 1, 2 and 3 rows
            rows = count % 3 + 1
            topic.publish_many([b"%d" % (count + index) + bytes(3 * KIB) for index in range(rows)])
            count += rows
        for start in range(count + 1):
            for end in {start, start + 1, (start + count) // 2, count, count + 5}:
                offsets = [message.offset for message in topic.read(start, end=end)]
                assert offsets == list(range(start, min(end, count)))


def test_a_reader_sees_what_was_there_when_it_was_made_and_a_follower_all_that_comes(where: Path | None) -> None:
    with frazil.open(where) as storage:
        topic = storage.topic("/default/live")
        topic.publish(b"0")
        now, live = topic.read(), topic.read("latest", follow=True, end=3)
        topic.publish(b"1")
        topic.publish(b"2")
        assert [message.payload for message in now] == [b"0"]
        assert [message.payload for message in live] == [b"1", b"2"]


def test_a_follower_that_waits_is_woken_by_a_publisher(where: Path | None) -> None:
    seen: list[int] = []
    with frazil.open(where) as storage:
        topic = storage.topic("/default/tail")

        def follow() -> None:
            seen.extend(message.offset for message in topic.read(follow=True, end=50))

        reader = threading.Thread(target=follow)
        reader.start()
        for _ in range(50):
            topic.publish(b"x")
        reader.join(30)
        assert not reader.is_alive()
    assert seen == list(range(50))


def test_a_follower_gets_closed_when_the_storage_is_closed_under_it(where: Path | None) -> None:
    storage = frazil.open(where)
    topic = storage.topic("/default/tail")
    topic.publish(b"x")
    outcome: list[object] = []

    def follow() -> None:
        try:
            for message in topic.read(follow=True):
                outcome.append(message.payload)
        except frazil.Closed as error:
            outcome.append(type(error))

    reader = threading.Thread(target=follow)
    reader.start()
    while not outcome:
        reader.join(0.001)
    storage.close()
    reader.join(30)
    assert outcome == [b"x", frazil.Closed]


def test_after_close_nothing_is_taken_and_closing_again_is_fine(where: Path | None) -> None:
    storage = frazil.open(where)
    topic = storage.topic("/default/orders")
    storage.close()
    storage.close()
    with pytest.raises(frazil.Closed):
        topic.publish(b"x")
    with pytest.raises(frazil.Closed):
        storage.topic("/default/orders")


def test_many_threads_publish_to_one_topic_and_each_gets_its_own_offset(where: Path | None) -> None:
    offsets: dict[int, bytes] = {}
    barrier = threading.Barrier(8)
    with frazil.open(where) as storage:
        topic = storage.topic("/default/busy")

        def produce(name: int) -> None:
            barrier.wait()
            for index in range(100):
                payload = b"%d:%d" % (name, index)
                if index % 10:
                    offsets[topic.publish(payload)] = payload
                else:
                    first = topic.publish_many([payload, payload]).start
                    offsets[first] = offsets[first + 1] = payload

        threads = [threading.Thread(target=produce, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(offsets) == list(range(8 * 110))
        assert {message.offset: message.payload for message in topic.read()} == offsets


def test_a_batch_of_messages_keeps_their_keys_and_attributes_apart(where: Path | None) -> None:
    with frazil.open(where) as storage:
        topic = storage.topic("/default/batch")
        messages = [b"a", "b", frazil.Outgoing("c", key="k"), frazil.Outgoing("d", attributes={"x": "y"})]
        assert topic.publish_many(messages) == frazil.OffsetRange(0, 4)
        rows = [(row.payload, row.key, row.attributes) for row in topic.read()]
    assert rows == [(b"a", None, {}), (b"b", None, {}), (b"c", b"k", {}), (b"d", None, {"x": "y"})]


def test_a_record_batch_of_envelope_columns_goes_into_a_message_topic(where: Path | None) -> None:
    batch = pa.record_batch({"_payload": pa.array(["a", "b"]), "_key": pa.array([None, b"k"], pa.binary())})
    with frazil.open(where) as storage:
        topic = storage.topic("/default/arrow")
        assert topic.publish_many(batch) == frazil.OffsetRange(0, 2)
        assert [(row.payload, row.key) for row in topic.read()] == [(b"a", None), (b"b", b"k")]
        read = pa.Table.from_batches(topic.read_batches())
    assert read.column_names[:3] == ["_offset", "_append_time", "_publish_time"]
    assert read["_offset"].to_pylist() == [0, 1]


def test_offsets_outside_the_log_are_refused_with_what_there_is(where: Path | None) -> None:
    with frazil.open(where) as storage:
        topic = storage.topic("/default/orders")
        topic.publish(b"x")
        assert list(topic.read(1)) == []
        for offset in (-1, 2, 2**70):
            with pytest.raises(frazil.OffsetOutOfRange) as caught:
                topic.read(offset)
            assert (caught.value.first, caught.value.end) == (0, 1)


def test_topics_are_made_listed_and_deleted(where: Path | None) -> None:
    with frazil.open(where) as storage:
        storage.topic("/b/two").publish(b"old")
        storage.create_topic("/a/one")
        with pytest.raises(frazil.TopicExists):
            storage.create_topic("/a/one")
        assert storage.topics() == ["/a/one", "/b/two"]
        storage.delete_topic("/b/two")
        assert storage.topics() == ["/a/one"]
        with pytest.raises(frazil.TopicNotFound):
            storage.topic("/b/two", create=False)
        with pytest.raises(frazil.TopicNotFound):
            storage.delete_topic("/b/two")
        again = storage.topic("/b/two")
        assert list(again.read()) == []
        assert again.publish(b"new") == 0
        assert [message.payload for message in again.read()] == [b"new"]


def test_the_statistics_add_up(tmp_path: Path) -> None:
    with frazil.open(tmp_path) as storage:
        topic = storage.topic("/default/orders")
        topic.publish_many([b"x" * 100] * 10)
        stats = topic.stats()
        files = sum(path.stat().st_size for path in tmp_path.rglob("*.wal"))
        assert (stats.messages, stats.first_offset, stats.end, stats.durable_end) == (10, 0, 10, 10)
        assert 1000 < stats.bytes <= stats.reserved_bytes == files == storage.budget.used_bytes
        assert (stats.cached_from, stats.queued_bytes, stats.failed, stats.torn_tail) == (0, 0, None, None)


def test_one_who_asks_for_the_owner_keeps_none_from_starting(tmp_path: Path) -> None:
    """After a crash: the file names a process that is gone, and only the lock tells."""
    with frazil.open(tmp_path):
        pass
    (tmp_path / OWNER_FILE).write_text("4194305\n")
    with (tmp_path / OWNER_FILE).open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # as `owner_of` does
        asks = threading.Timer(0.2, fcntl.flock, (file, fcntl.LOCK_UN))
        asks.start()
        with frazil.open(tmp_path) as storage:
            assert storage.topic("/default/a").publish(b"x") == 0
            assert owner_of(storage.settings) == os.getpid()
        asks.join()


def test_a_second_process_is_told_who_owns_the_folder(tmp_path: Path) -> None:
    with frazil.open(tmp_path), pytest.raises(frazil.FolderInUse) as caught:
        frazil.open(tmp_path)
    assert caught.value.pid == os.getpid()
    frazil.open(tmp_path).close()


def test_each_row_of_a_record_batch_is_held_to_the_size_of_a_message(tmp_path: Path) -> None:
    settings = frazil.Settings(data=tmp_path, wal=frazil.WalSettings(message_bytes_max=10))
    attributes = pa.array([[("a", "b")], None, [("cc", "dd"), ("e", "")]], pa.map_(pa.string(), pa.string()))

    def batch(payload: bytes, key: bytes | None) -> pa.RecordBatch:
        keys = pa.array([None, None, key], pa.binary())
        payloads = pa.array([b"", b"0123456789", payload], pa.binary())
        return pa.record_batch({"_payload": payloads, "_key": keys, "_attributes": attributes})

    with frazil.open(settings) as storage:
        topic = storage.topic("/default/limits")
        topic.publish_many(batch(b"12345", None))
        topic.publish_many(batch(b"1234", b"5").slice(1))
        for bad in (batch(b"123456", None), batch(b"12345", b"6"), batch(b"12345", b"6").slice(2)):
            with pytest.raises(frazil.MessageTooLarge) as caught:
                topic.publish_many(bad)
            assert caught.value.size_bytes == 11
        assert topic.stats().end == 5
