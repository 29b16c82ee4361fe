"""Logs are uploaded beside publishing: whatever the store does, each row is in one object, and the chain is valid."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from object_rows import EACH, SCHEMA, TOPIC, numbers
from test_epoch import content

import frazil
from frazil.core.errors import LogFenced, ObjectsAhead, ObjectsDiffer, ObjectStoreUnavailable
from frazil.core.settings import make_settings
from frazil.core.settings.objects import ObjectsSettings
from frazil.log.storage import open_storage
from frazil.log.topic import Topic
from frazil.meta.sqlite import SqliteStore
from frazil.objects.epoch import EpochClaim, begin_epoch
from frazil.objects.known import ObjectsOfLogs
from frazil.objects.loading import load_objects
from frazil.objects.manifests import Manifests
from frazil.objects.reading import ObjectReader
from frazil.objects.store import ObjectStore
from frazil.objects.upload.bandwidth import Bandwidth
from frazil.objects.upload.uploader import Uploader
from frazil.testing import FakeClock

WAIT_SECONDS_MAX = 20.0


def until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_SECONDS_MAX
    while not reached():
        assert time.monotonic() < end, "it does not happen"
        threading.Event().wait(0.01)


class FailingStore:
    """Fails writes with a number of errors; half of them have taken effect."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.failures = 0
        self.fails_in = ""
        self.created: list[str] = []
        self.travelling = self.travelling_max = 0
        self._guard = threading.Lock()

    def create(self, name: str, content: bytes) -> str | None:
        with self._guard:
            self.travelling += 1
            self.travelling_max = max(self.travelling_max, self.travelling)
            fails = self.failures > 0 and self.fails_in in name
            self.failures -= fails
            applies = not fails or self.failures % 2 == 0
        try:
            threading.Event().wait(0.01)
            etag = self._store.create(name, content) if applies else None
            if fails:
                raise ObjectStoreUnavailable(name, "503")
            self.created.append(name)
            return etag
        finally:
            with self._guard:
                self.travelling -= 1

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
        return getattr(self._store, name)


class Uploads:
    """A storage in memory with its uploader."""

    def __init__(self, storage: frazil.Storage, store: ObjectStore, meta: SqliteStore) -> None:
        self.storage = storage
        self.store = FailingStore(store)
        self.manifests = Manifests(meta)
        self.uploaders: list[Uploader] = []

    def start(self, owner: str = "b1", **settings: object) -> Uploader:
        objects = ObjectsOfLogs(self.store, self.manifests)
        given = ObjectsSettings.model_validate({"enabled": True, **settings})
        claim = EpochClaim(owner)
        made = Uploader(objects, given, claim, frazil.log.storage.SystemClock(), self._logs)
        self.uploaders.append(made)
        made.start()
        return made

    def _logs(self):  # type: ignore[no-untyped-def]
        return [topic.log for topic in self.storage.opened_topics()]

    def rows(self, topic: Topic) -> list[int]:
        """Return the values that the objects have, by a listing alone."""
        found = load_objects(self.store, topic.log.log_id, None)
        if not found.objects:
            return []
        batches = ObjectReader(self.store, found.objects, found.objects[0].first)
        return [value for batch in batches for value in batch.rows.column("value").to_pylist()]


@pytest.fixture
def uploads(store: ObjectStore, tmp_path: Path) -> Iterator[Uploads]:
    settings = make_settings({"wal": {"max_file_size": 256 * 1024, "cache_bytes": 0}})
    meta = SqliteStore(tmp_path / "meta.db")
    with open_storage(settings.model_copy(update={"data": None})) as storage:
        made = Uploads(storage, store, meta)
        yield made
        for uploader in made.uploaders:
            uploader.stop()
    meta.close()


def filled(uploads: Uploads, frames: int = 60, name: str = TOPIC, pad: int = 20_000) -> Topic:
    topic = uploads.storage.topic(name, schema=SCHEMA)
    for _ in range(frames):
        topic.publish_many(numbers(topic.log.durable_end, pad=pad))
    return topic


def sealed_end(topic: Topic) -> int:
    return topic.log.segments[-1].base


def test_sealed_segments_are_uploaded_and_the_open_one_is_not(uploads: Uploads) -> None:
    topic = filled(uploads)
    uploader = uploads.start()
    until(lambda: uploader.upload_of(topic.log).end == sealed_end(topic))
    assert 0 < sealed_end(topic) < topic.log.durable_end
    assert uploads.rows(topic) == list(range(sealed_end(topic)))
    assert uploads.manifests.of(topic.log.log_id) == list(uploader.upload_of(topic.log).epoch.objects.all())  # type: ignore[union-attr]
    assert uploader.counts.objects == len(topic.log.segments) - 1


def test_finish_uploads_all_that_is_durable(uploads: Uploads) -> None:
    topic = filled(uploads)
    uploader = uploads.start()
    assert uploader.finish(topic.log) == topic.log.durable_end
    assert uploads.rows(topic) == list(range(topic.log.durable_end))
    filled(uploads, 3)
    assert uploader.finish(topic.log) == topic.log.durable_end == len(uploads.rows(topic))


def test_open_segments_are_uploaded_at_an_interval(uploads: Uploads) -> None:
    topic = filled(uploads, 2, pad=100)
    uploader = uploads.start(open_interval_ms=200)
    for _ in range(3):
        until(lambda: uploader.upload_of(topic.log).end == topic.log.durable_end)
        filled(uploads, 1, pad=100)
    assert len(topic.log.segments) == 1
    until(lambda: uploads.rows(topic) == list(range(topic.log.durable_end)))


def test_no_more_than_the_limit_travels_at_once(uploads: Uploads) -> None:
    topic = filled(uploads, 120)
    uploader = uploads.start(parallel_max=3, object_bytes_max=1024 * 1024)
    uploader.finish(topic.log)
    assert 1 < uploads.store.travelling_max <= 3


def test_a_store_that_fails_is_tried_again_and_no_object_is_doubled(uploads: Uploads) -> None:
    topic = filled(uploads, 120)
    uploads.store.failures = 8
    uploader = uploads.start()
    uploader.finish(topic.log)
    assert uploader.counts.failures == 8
    assert uploads.store.failures == 0
    assert uploads.rows(topic) == list(range(topic.log.durable_end))
    assert uploader.problems() == []
    assert len(uploads.store.created) == len(set(uploads.store.created))


def test_a_log_that_fails_stops_alone_and_is_named(uploads: Uploads) -> None:
    ill, well = filled(uploads, 40, "/shop/ill"), filled(uploads, 40, "/shop/well")
    uploads.store.failures, uploads.store.fails_in = 1_000_000, ill.log.log_id
    uploader = uploads.start()
    assert uploader.finish(well.log) == well.log.durable_end
    until(lambda: bool(uploader.problems()))
    (problem,) = uploader.problems()
    assert (problem.topic, problem.code) == ("/shop/ill", "object_store_unavailable")
    assert "503" in problem.message
    assert problem.since_us > 0
    uploads.store.failures = 0
    assert uploader.finish(ill.log) == ill.log.durable_end
    assert uploader.problems() == []


def test_an_upload_that_cannot_finish_says_what_it_met(uploads: Uploads) -> None:
    topic = filled(uploads, 4)
    uploads.store.failures = 1_000_000
    with pytest.raises(ObjectStoreUnavailable, match="503"):
        uploads.start().finish(topic.log, 0.7)


def test_the_next_process_goes_on_where_the_objects_end(uploads: Uploads) -> None:
    topic = filled(uploads)
    first = uploads.start()
    until(lambda: first.upload_of(topic.log).end == sealed_end(topic))
    first.stop()
    filled(uploads)
    second = uploads.start()
    assert second.finish(topic.log) == topic.log.durable_end
    assert second.upload_of(topic.log).epoch.number == 2  # type: ignore[union-attr]
    assert uploads.rows(topic) == list(range(topic.log.durable_end))
    assert len(uploads.store.created) == len(set(uploads.store.created))


def test_a_log_without_new_rows_begins_no_epoch(uploads: Uploads) -> None:
    topic = filled(uploads)
    first = uploads.start()
    until(lambda: first.upload_of(topic.log).end == sealed_end(topic))
    first.stop()
    created = len(uploads.store.created)
    second = uploads.start()
    until(lambda: second.upload_of(topic.log).end == sealed_end(topic))
    assert second.upload_of(topic.log).epoch is None
    assert len(uploads.store.created) == created


def test_manifests_that_were_lost_are_stored_again(uploads: Uploads) -> None:
    topic = filled(uploads)
    first = uploads.start()
    first.finish(topic.log)
    first.stop()
    uploads.manifests.remove_log(topic.log.log_id)
    filled(uploads, 2)
    uploads.start().finish(topic.log)
    until(lambda: [one.end for one in uploads.manifests.of(topic.log.log_id)][-1] == topic.log.durable_end)
    assert uploads.manifests.of(topic.log.log_id)[0].first == 0
    assert uploads.rows(topic) == list(range(topic.log.durable_end))


def test_a_log_that_was_closed_and_opened_goes_on_with_what_is_on_its_way(
    uploads: Uploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other bytes of the same name would end its epoch, as if somebody else had stored them."""
    topic = filled(uploads, 2, pad=100)
    uploader = uploads.start(open_interval_ms=50)
    uploader.finish(topic.log)
    create, stopped, goes_on = uploads.store.create, threading.Event(), threading.Event()

    def late(name: str, content: bytes) -> str | None:
        monkeypatch.undo()
        stopped.set()
        assert goes_on.wait(WAIT_SECONDS_MAX)
        return create(name, content)

    monkeypatch.setattr(uploads.store, "create", late)
    filled(uploads, 1, pad=100)
    assert stopped.wait(WAIT_SECONDS_MAX)
    uploads.storage.admission.withhold(topic.log.name)
    uploads.storage.admission.admit(topic.log.name)
    again = filled(uploads, 1, pad=100)
    assert again.log is not topic.log
    with pytest.raises(ObjectStoreUnavailable, match="uploaded up to"):
        uploader.finish(again.log, 0.5)
    goes_on.set()
    for _ in range(2):
        assert uploader.finish(again.log) == again.log.durable_end
        assert uploads.rows(again) == list(range(again.log.durable_end))
        filled(uploads, 1, pad=100)


def test_a_former_owner_stops_and_says_who_owns_the_log(uploads: Uploads) -> None:
    topic = filled(uploads)
    uploader = uploads.start()
    uploader.finish(topic.log)
    known = ObjectsOfLogs(uploads.store).of(topic.log.log_id)
    begin_epoch(known, TOPIC, EpochClaim("b2"), FakeClock())
    filled(uploads, 1)
    with pytest.raises(LogFenced, match="b2"):
        uploader.finish(topic.log)
    (problem,) = uploader.problems()
    assert problem.code == "log_fenced"
    created = len(uploads.store.created)
    filled(uploads, 60)
    with pytest.raises(LogFenced):
        uploader.finish(topic.log)
    assert len(uploads.store.created) == created


def test_a_log_that_was_set_back_behind_its_objects_takes_nothing_over(uploads: Uploads, store: ObjectStore) -> None:
    topic = filled(uploads, 2)
    owner = begin_epoch(ObjectsOfLogs(store).of(topic.log.log_id), TOPIC, EpochClaim("b2"), FakeClock())
    end = topic.log.durable_end + EACH
    owner.put(0, end, content(0, end), None, None)
    with pytest.raises(ObjectsAhead, match=f"up to offset {end}"):
        uploads.start().finish(topic.log)
    assert load_objects(store, topic.log.log_id, None).epoch == 1


@pytest.mark.parametrize("has_manifests", [True, False])
def test_a_copy_that_has_other_rows_is_not_uploaded(uploads: Uploads, has_manifests: bool) -> None:
    topic = filled(uploads, 4)
    first = uploads.start()
    first.finish(topic.log)
    first.stop()
    if not has_manifests:
        uploads.manifests.remove_log(topic.log.log_id)
    before = load_objects(uploads.store, topic.log.log_id, None)
    settings = make_settings({"wal": {"max_file_size": 256 * 1024, "cache_bytes": 0}})
    with open_storage(settings.model_copy(update={"data": None}), clock=FakeClock()) as storage:
        storage.create_topic(TOPIC, schema=SCHEMA, log_id=topic.log.log_id)
        uploads.storage = storage
        other = filled(uploads, 6)
        uploader = uploads.start("b2")
        with pytest.raises(ObjectsDiffer, match=f"before offset {before.end}"):
            uploader.finish(other.log)
        assert load_objects(uploads.store, topic.log.log_id, None).epoch == before.epoch
        uploader.stop()


def test_rows_that_were_removed_while_objects_were_off_leave_a_gap(uploads: Uploads) -> None:
    topic = filled(uploads)
    first = uploads.start()
    first.finish(topic.log)
    first.stop()
    filled(uploads, 60)
    uploads.storage.set_retention(TOPIC, frazil.RetentionSettings(bytes=300_000))
    uploads.storage.maintain()
    gap = topic.log.first_offset
    uploads.start().finish(topic.log)
    found = load_objects(uploads.store, topic.log.log_id, None)
    assert next(one.first for one in found.objects if one.epoch == 2) == gap > found.objects[0].end
    assert found.end == topic.log.durable_end


def test_bandwidth_is_shared_and_never_exceeded_for_long() -> None:
    clock = FakeClock()
    bandwidth = Bandwidth(1_000, clock)
    waits = [bandwidth.take(500) for _ in range(6)]
    assert waits == [0.0, 0.0, 0.0, 0.5, 1.0, 1.5]
    clock.advance(60_000_000)
    assert [bandwidth.take(1_000) for _ in range(3)] == [0.0, 0.0, 1.0]
    assert Bandwidth(None, clock).take(10**12) == 0.0


def test_uploads_keep_to_the_bandwidth(uploads: Uploads) -> None:
    topic = filled(uploads, 6)
    size = sum(segment.used_bytes for segment in topic.log.segments)
    started = time.monotonic()
    uploads.start(bytes_per_second_max=size // 2).finish(topic.log)
    assert 0.5 < time.monotonic() - started < WAIT_SECONDS_MAX


def test_a_late_caller_with_a_closed_log_does_not_end_the_upload_of_the_one_that_was_opened_since(
    tmp_path: Path, store: ObjectStore
) -> None:
    """The scanner has listed the logs, and one was given away and came back: its next move would wait for ever."""
    settings = make_settings({"data": str(tmp_path / "data"), "wal": {"max_file_size": 256 * 1024}})
    with open_storage(settings, clock=FakeClock()) as storage:
        topic = storage.topic(TOPIC)
        topic.publish_many([b"one"])
        former, objects = topic.log, ObjectsOfLogs(store)
        epoch = begin_epoch(objects.of(former.log_id), TOPIC, EpochClaim("b1"), FakeClock())
        storage.admission.withhold(former.name)
        storage.admission.admit(former.name)
        log = storage.topic(TOPIC).log
        assert log is not former
        claim = EpochClaim("b1")
        uploader = Uploader(objects, ObjectsSettings(), claim, FakeClock(), lambda: [log], begins_epochs=False)
        try:
            uploader.attach(log, epoch)
            uploader.upload_of(former)
            assert uploader.upload_of(log).epoch is epoch
            assert uploader.finish(log) == 1
        finally:
            uploader.stop()
