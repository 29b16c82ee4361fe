"""Rows of a folder go from files to objects and are read from there; a deleted topic leaves nothing."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import httpx
import pytest
from uploaded_folder import TOPIC, filled, names_in, numbers_in, parts_of, settings_of, until

import frazil
from frazil.cli.main import main
from frazil.core.errors import MetadataUnavailable, ObjectDamaged, ObjectsDiffer
from frazil.core.names import TopicName
from frazil.core.settings import Settings
from frazil.doors.http.door import make_app
from frazil.log.folder.layout import TOPIC_FILE, topic_folder
from frazil.node.health.readiness import UploadProblems
from frazil.node.movers.table_progress import StatusReader
from frazil.node.node import Node
from frazil.node.objects.deletion import DELETED
from frazil.node.objects.figures import object_stats
from frazil.node.topics.describing import describe_from_files
from frazil.node.topics.summaries import TopicSummaries
from frazil.objects.epoch import EpochClaim, begin_epoch
from frazil.objects.known import ObjectsOfLogs
from frazil.objects.opening import open_objects
from frazil.testing import FakeClock


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_of(tmp_path)


def test_a_copy_of_a_folder_keeps_rows_that_the_store_has_otherwise(settings: Settings, tmp_path: Path) -> None:
    with frazil.open(settings) as storage:
        filled(storage, 100)
    shutil.copytree(settings.log_folder.parent, tmp_path / "copy")
    with frazil.open(settings) as storage:
        topic = filled(storage, 1_000)
        parts_of(storage).uploader.finish(topic.log)
    copy = settings.model_copy(update={"data": tmp_path / "copy"})
    with frazil.open(copy) as storage:
        topic = filled(storage, 1_100)
        with pytest.raises(ObjectsDiffer):
            parts_of(storage).uploader.finish(topic.log, 5.0)
        first = topic.log.first_offset
        storage.maintain()
        assert topic.log.first_offset == first == 0
        (kept,) = storage.kept_by_guards()
        assert "objects" in kept.guard
    with frazil.open(copy) as storage:
        topic = storage.topic(TOPIC)
        storage.maintain()  # perhaps before the uploader has looked
        assert topic.log.first_offset == 0


def test_rows_go_from_files_to_objects_and_a_reader_continues_there(settings: Settings) -> None:
    with frazil.open(settings) as storage:
        topic = filled(storage)
        parts_of(storage).uploader.finish(topic.log)
        storage.maintain()
        assert topic.log.first_offset > 500
        assert topic.log.removal.dropped == ()
        assert numbers_in(topic) == list(range(1_000))
        assert storage.metrics.reads_from_objects > 100
    with frazil.open(settings) as storage:
        topic = filled(storage, 10)
        assert numbers_in(topic) == list(range(1_010))


def test_lists_of_topics_count_rows_that_only_objects_have(settings: Settings) -> None:
    with frazil.open(settings) as storage:
        topic = filled(storage)
        parts_of(storage).uploader.finish(topic.log)
        storage.maintain()
        assert topic.log.first_offset > 0
        listed = TopicSummaries(storage, None, StatusReader(settings)).summary(topic.log.name, None)
        assert listed is not None
        assert (listed["first_offset"], listed["messages"], listed["end"]) == (0, 1_000, 1_000)


def test_rows_stay_in_the_files_until_they_are_in_the_store(settings: Settings) -> None:
    with frazil.open(settings) as storage:
        parts = parts_of(storage)
        parts.uploader.stop()
        topic = filled(storage)
        storage.maintain()
        assert topic.log.first_offset == 0
        held = topic.stats().held_back
        assert held is not None
        assert (held.guard, held.floor) == ("objects", 0)
    with frazil.open(settings) as storage:
        topic = storage.topic(TOPIC)
        parts_of(storage).uploader.finish(topic.log)
        storage.maintain()
        assert topic.log.first_offset > 0


def test_a_log_that_another_process_took_over_keeps_its_files(settings: Settings) -> None:
    with frazil.open(settings) as storage:
        topic = filled(storage)
        uploader = parts_of(storage).uploader
        uploader.finish(topic.log)
        known = ObjectsOfLogs(open_objects(settings)).of(topic.log.log_id)
        begin_epoch(known, TOPIC, EpochClaim("b2"), FakeClock())
        filled(storage, 100)
        until(lambda: uploader.upload_of(topic.log).fenced is not None)
        before = topic.log.first_offset
        storage.maintain()
        assert topic.log.first_offset == before <= 1_000
        (kept,) = storage.kept_by_guards()
        assert kept.error["error"] == "log_fenced"


def test_a_deleted_topic_leaves_no_object_and_no_manifest(settings: Settings) -> None:
    with frazil.open(settings) as storage:
        parts, topic = parts_of(storage), filled(storage)
        parts.uploader.finish(topic.log)
        other = storage.topic("/shop/other")
        other.publish("tea")
        parts.uploader.finish(other.log)
        assert len(names_in(settings)) > 5
        storage.delete_topic(TOPIC)
        until(lambda: not parts.deleted.waiting)
        assert all(other.log.log_id in name for name in names_in(settings))
        manifests = parts.objects.manifests
        assert manifests is not None
        assert manifests.of(topic.log.log_id) == []
        again = storage.topic(TOPIC)
        assert numbers_in(again) == []
        again.publish("cake")
        parts.uploader.finish(again.log)
        assert len(names_in(settings)) == 4


def test_a_deletion_that_a_crash_interrupted_is_finished_at_the_next_start(settings: Settings) -> None:
    with frazil.open(settings) as storage:
        parts, topic = parts_of(storage), filled(storage, 100)
        parts.uploader.finish(topic.log)
        parts.deleted.stop()
        storage.delete_topic(TOPIC)
        assert names_in(settings)
    with frazil.open(settings) as storage:
        until(lambda: names_in(settings) == [])
        until(lambda: notes_of(storage) == [])


def notes_of(storage: frazil.Storage) -> list[str]:
    meta = parts_of(storage)._meta
    assert meta is not None
    return [entry.key for entry in meta.list(DELETED)]


def test_a_topic_that_was_not_deleted_after_all_keeps_its_objects(settings: Settings) -> None:
    with frazil.open(settings) as storage:
        parts, topic = parts_of(storage), filled(storage, 100)
        parts.uploader.finish(topic.log)
        before = names_in(settings)
        parts.deleted.note(TopicName.parse(TOPIC), topic.log.log_id)  # killed before the folder was moved away
    with frazil.open(settings) as storage:
        until(lambda: notes_of(storage) == [])
        assert names_in(settings) == before
        assert numbers_in(storage.topic(TOPIC)) == list(range(100))


def test_a_topic_whose_record_cannot_be_read_keeps_its_objects(settings: Settings) -> None:
    with frazil.open(settings) as storage:
        parts, topic = parts_of(storage), filled(storage, 100)
        parts.uploader.finish(topic.log)
        before = names_in(settings)
        parts.deleted.note(TopicName.parse(TOPIC), topic.log.log_id)  # killed before the folder was moved away
    record = topic_folder(settings.log_folder, TopicName.parse(TOPIC)) / TOPIC_FILE
    content = record.read_bytes()
    record.write_bytes(content[: len(content) // 2])
    with frazil.open(settings) as storage:
        deleted = parts_of(storage).deleted
        deleted.remove("another log")
        until(lambda: not deleted.waiting)  # it comes behind what the notes say
        assert names_in(settings) == before
        assert len(notes_of(storage)) == 1
    record.write_bytes(content)
    with frazil.open(settings) as storage:
        until(lambda: notes_of(storage) == [])
        assert numbers_in(storage.topic(TOPIC)) == list(range(100))


def test_a_topic_is_not_deleted_if_that_cannot_be_noted(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with frazil.open(settings) as storage:
        filled(storage, 10)

        def away(*_: object) -> None:
            raise MetadataUnavailable("sqlite", "locked")

        monkeypatch.setattr(parts_of(storage)._meta, "put_all", away)
        with pytest.raises(MetadataUnavailable):
            storage.delete_topic(TOPIC)
        assert numbers_in(storage.topic(TOPIC)) == list(range(10))


def test_a_folder_without_objects_opens_as_before_and_loads_no_library(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = "import sys, frazil; frazil.open(sys.argv[1]).close(); sys.exit('obstore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=60).returncode == 0


def test_objects_work_without_a_data_folder(tmp_path: Path) -> None:
    settings = settings_of(tmp_path).model_copy(update={"data": None})
    with frazil.open(settings) as storage:
        topic = filled(storage, 100)
        parts_of(storage).uploader.finish(topic.log)
        assert numbers_in(topic) == list(range(100))


def test_figures_tell_what_the_store_has(settings: Settings) -> None:
    with frazil.open(settings) as storage:
        topic, parts = filled(storage, 100), parts_of(storage)
        parts.uploader.finish(topic.log)
        parts.uploader.stop()
        filled(storage, 10)
        objects = topic.stats().tiers.objects
        assert objects is not None
        assert (objects.first, objects.end, objects.rows, objects.lag_rows, objects.error) == (0, 100, 100, 10, None)
        assert objects.lag_ms is not None
        stats = object_stats(storage)
        assert stats is not None
        assert [(one.topic, one.lag_rows) for one in stats.topics] == [(TOPIC, 10)]
        assert stats.uploaded >= 1
        assert stats.uploaded_bytes == objects.bytes
    shown = describe_from_files(settings, TopicName.parse(TOPIC))["tiers"]["objects"]
    assert (shown["end"], shown["rows"], shown["lag_rows"]) == (100, 100, 10)


def test_health_names_a_topic_whose_upload_fails(settings: Settings, tmp_path: Path) -> None:
    with frazil.open(settings) as storage:
        topic, parts = filled(storage, 100), parts_of(storage)
        parts.uploader.finish(topic.log)
        assert UploadProblems(storage)() == []
        begin_epoch(ObjectsOfLogs(parts.store).of(topic.log.log_id), TOPIC, EpochClaim("b2"), FakeClock())
        filled(storage, 300)
        until(lambda: bool(UploadProblems(storage)()))
        (problem,) = UploadProblems(storage)()
        assert (problem["topic"], problem["error"]) == (TOPIC, "log_fenced")
        objects = topic.stats().tiers.objects
        assert objects is not None
        assert "b2" in str(objects.error)


def test_a_store_in_memory_protects_no_row_of_a_folder(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, store={"type": "memory", "bucket": str(tmp_path)})
    with frazil.open(settings) as storage:
        topic, parts = filled(storage), parts_of(storage)
        parts.uploader.finish(topic.log)
        storage.maintain()
        assert topic.log.first_offset == 0
        (kept,) = storage.kept_by_guards()
        assert "memory" in kept.message


@pytest.mark.parametrize("damage", ["missing", "cut", "changed"])
def test_a_damaged_object_is_refused_by_its_name_and_never_skipped(settings: Settings, damage: str) -> None:
    with frazil.open(settings) as storage:
        topic, parts = filled(storage), parts_of(storage)
        parts.uploader.finish(topic.log)
        storage.maintain()
        held = parts.objects.of(topic.log.log_id).load().all()
    path = next(Path(name) for name in names_in(settings) if name.endswith(f"{held[2].first:020d}"))
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    with frazil.open(settings) as storage:
        reader = storage.topic(TOPIC).read_batches("earliest")
        read: list[int] = []
        with pytest.raises(ObjectDamaged, match=f"{held[2].first:020d}"):
            read.extend(offset for batch in reader for offset in batch.column("_offset").to_pylist())
        assert read == list(range(len(read)))
        assert len(read) <= held[2].end


def test_describe_shows_objects_over_http_and_at_the_command_line(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with frazil.open(settings) as storage:
        topic = filled(storage, 100)
        parts_of(storage).uploader.finish(topic.log)
        expected = topic.stats().tiers.objects
        assert expected is not None

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(make_app(Node(storage)))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return await client.get(f"/v1/topics{TOPIC}")

        told = asyncio.run(ask()).json()["tiers"]["objects"]
        assert (told["end"], told["rows"], told["bytes"], told["lag_rows"]) == (100, 100, expected.bytes, 0)
    config = tmp_path / "frazil.json"
    objects = settings.objects.model_dump(mode="json", exclude_defaults=True)
    config.write_text(json.dumps({"data": str(settings.data), "pipeline": {"enabled": False}, "objects": objects}))
    assert main(["topics", "describe", TOPIC, "--config", str(config)]) == 0
    shown = capsys.readouterr().out
    assert "in objects:" in shown
    assert "100 rows" in shown
    assert "not uploaded:" in shown
