"""Rows leave the files once the store has them, and objects go oldest first, whatever the store does meanwhile."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from uploaded_folder import TOPIC, aged, filled, names_in, numbers_in, parts_of, settings_of

import frazil
from frazil.core.errors import MetadataUnavailable, ObjectDamaged, ObjectStoreUnavailable
from frazil.core.offsets import OffsetRange
from frazil.core.settings import RetentionSettings, Settings
from frazil.core.stored_objects import StoredObject
from frazil.log.retention.dropped import dropped_ranges
from frazil.log.retention.guards import GuardFailed
from frazil.objects.remote import ObstoreObjects


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_of(tmp_path)


class TestRetentionOfObjects:
    def test_without_a_table_objects_go_once_their_rows_left_the_files_and_are_recorded_as_dropped(
        self, settings: Settings
    ) -> None:
        with frazil.open(aged(settings, bytes=400_000)) as storage:
            topic, parts = filled(storage), parts_of(storage)
            parts.uploader.finish(topic.log)
            assert parts.retention.enforce(topic.log) == 0  # the files still have all rows
            storage.maintain()
            assert parts.retention.enforce(topic.log) > 0
            held = parts.objects.of(topic.log.log_id).load().all()
            assert sum(one.size_bytes for one in held) < 400_000 + parts.settings.objects.parallel_max * 256 * 1024
            (dropped,) = topic.log.removal.dropped
            assert (dropped.offsets.start, dropped.offsets.end) == (0, held[0].first)
            assert numbers_in(topic) == list(range(held[0].first, 1_000))
            stats = topic.stats()
            assert (stats.first_offset, stats.messages) == (held[0].first, 1_000 - held[0].first)
        assert len(names_in(settings)) == len(held) + 1  # and the fence
        with frazil.open(settings) as storage:
            assert numbers_in(storage.topic(TOPIC)) == list(range(held[0].first, 1_000))
            assert storage.topic(TOPIC).log.removal.dropped == (dropped,)

    def test_what_a_table_has_is_asked_at_that_moment(self, settings: Settings) -> None:
        class Table:
            name, holds_rows, end = "table", True, 0

            def concerns(self, _: object) -> bool:
                return True

            def floor(self, _: object) -> int:
                if self.end < 0:
                    raise MetadataUnavailable("catalog", "away")
                return self.end

            def close(self) -> None:
                pass

        table = Table()
        with frazil.open(aged(settings, age_ms=1)) as storage:
            topic, parts = filled(storage), parts_of(storage)
            parts.retention._guards = lambda: [table]
            parts.uploader.finish(topic.log)
            held = parts.objects.of(topic.log.log_id).load().all()
            assert parts.retention.enforce(topic.log) == 0
            table.end = -1
            with pytest.raises(GuardFailed):
                parts.retention.enforce(topic.log)
            table.end = held[3].end
            assert parts.retention.enforce(topic.log) == sum(one.size_bytes for one in held[:4])
            table.end = 1_000
            parts.retention.enforce(topic.log)
            left = parts.objects.of(topic.log.log_id).load().all()
            assert 1 <= len(left) <= parts.settings.objects.parallel_max + 1
            assert topic.log.removal.dropped == ()

    def test_guards_that_were_added_since_are_asked_too(self, settings: Settings) -> None:
        """Those of a broker: a subscription that was just set back is not stored yet."""

        class Acked:
            name, holds_rows, end = "subscriptions", False, 0

            def concerns(self, _: object) -> bool:
                return True

            def floor(self, _: object) -> int:
                return self.end

            def close(self) -> None:
                pass

        acked = Acked()
        with frazil.open(aged(settings, age_ms=1)) as storage:
            topic, parts = filled(storage), parts_of(storage)
            parts.uploader.finish(topic.log)
            storage.maintain()
            held = parts.objects.of(topic.log.log_id).load().all()
            storage.add_guard(acked)
            assert parts.retention.enforce(topic.log) == 0
            acked.end = held[1].end
            assert parts.retention.enforce(topic.log) == held[0].size_bytes + held[1].size_bytes

    def test_rows_that_nobody_has_acknowledged_stay_where_nobody_can_tell(self, settings: Settings) -> None:
        """A folder in memory has no subscriptions."""
        with frazil.open(aged(settings, age_ms=1).model_copy(update={"data": None})) as storage:
            topic, parts = filled(storage), parts_of(storage)
            parts.uploader.finish(topic.log)
            storage.maintain()
            storage.set_retention(topic.name, RetentionSettings(until_acked=True))
            assert topic.log.first_offset > 0
            assert parts.retention.enforce(topic.log) == 0

    def test_a_crash_right_after_a_removal_was_noted_leaves_no_row_unaccounted(self, settings: Settings) -> None:
        """Its objects count no more from then on."""
        with frazil.open(aged(settings, bytes=400_000)) as storage:
            topic, parts = filled(storage), parts_of(storage)
            parts.uploader.finish(topic.log)
            storage.maintain()
            manifests = parts.objects.manifests
            assert manifests is not None
            note = manifests.note_removed

            def killed(*given: Any) -> None:
                assert note(*given)
                raise KeyboardInterrupt

            with mock.patch.object(manifests, "note_removed", killed), pytest.raises(KeyboardInterrupt):
                parts.retention.enforce(topic.log)
        with frazil.open(settings) as storage:
            topic = storage.topic(TOPIC)
            first = parts_of(storage).objects.of(topic.log.log_id).load().start
            assert first > 0
            assert dropped_ranges(topic.log.removal.dropped) == (OffsetRange(0, first),)
            assert numbers_in(topic) == list(range(first, 1_000))

    def test_what_a_crash_left_of_a_removal_is_removed_by_the_next(self, settings: Settings) -> None:
        with frazil.open(aged(settings, bytes=400_000)) as storage:
            topic, parts = filled(storage), parts_of(storage)
            parts.uploader.finish(topic.log)
            storage.maintain()
            held = parts.objects.of(topic.log.log_id).load().all()
            manifests = parts.objects.manifests
            assert manifests is not None
            manifests.remove(held[:3])  # killed before the first object was removed
        with frazil.open(aged(settings, bytes=400_000)) as storage:
            topic, parts = storage.topic(TOPIC), parts_of(storage)
            assert parts.retention.enforce(topic.log) > 0
            left = parts.objects.of(topic.log.log_id).load().all()
            assert len(names_in(settings)) == len(left) + 1

    def test_what_the_store_refused_to_remove_goes_before_anything_else(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise a hole would appear between objects, and the next process would take it for damage."""
        removes = ObstoreObjects.delete

        def fails(store: ObstoreObjects, names: Iterable[str]) -> None:
            removes(store, names)
            raise ObjectStoreUnavailable("deletion", "503 Slow Down")

        with frazil.open(aged(settings, bytes=400_000)) as storage:
            parts = parts_of(storage)
            for failing in (False, True, False):
                topic = filled(storage)
                parts.uploader.finish(topic.log)
                storage.maintain()
                if failing:
                    monkeypatch.setattr(ObstoreObjects, "delete", fails)
                    with pytest.raises(ObjectStoreUnavailable):
                        parts.retention.enforce(topic.log)
                    monkeypatch.undo()
                else:
                    assert parts.retention.enforce(topic.log) > 0
            held = parts.objects.of(topic.log.log_id).load().all()
        assert len(names_in(settings)) == len(held) + 1
        with frazil.open(settings) as storage:
            assert numbers_in(storage.topic(TOPIC)) == list(range(held[0].first, 3_000))

    def test_an_object_that_was_removed_before_it_had_a_manifest_gets_none(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with frazil.open(aged(settings, bytes=400_000)) as storage:
            parts = parts_of(storage)
            manifests = parts.objects.manifests
            assert manifests is not None

            def away(*_: object) -> None:
                raise MetadataUnavailable("etcd", "away")

            monkeypatch.setattr(manifests, "put", away)
            topic = filled(storage)
            parts.uploader.finish(topic.log)
            storage.maintain()
            assert parts.retention.enforce(topic.log) > 0
            monkeypatch.undo()
            known = parts.objects.of(topic.log.log_id)
            assert known.epoch is not None
            assert known.epoch.record()
            assert tuple(manifests.of(topic.log.log_id)) == known.load().all()


class TestStoreWithoutItsObjects:
    """Manifests tell of objects that the store does not have: no row leaves the files on their account."""

    @pytest.fixture
    def held(self, settings: Settings) -> tuple[StoredObject, ...]:
        with frazil.open(settings) as storage:
            topic, parts = filled(storage, 200), parts_of(storage)
            parts.uploader.finish(topic.log)
            return parts.objects.of(topic.log.log_id).load().all()

    def check_kept(self, settings: Settings, missing: StoredObject) -> None:
        with frazil.open(settings) as storage:
            topic = storage.topic(TOPIC)
            storage.maintain()
            assert topic.log.first_offset == 0
            (kept,) = storage.kept_by_guards()
            assert kept.guard == "objects"
            assert f"{missing.first:020d}" in kept.message
            assert numbers_in(topic) == list(range(200))

    def test_another_store_is_refused(self, settings: Settings, held: tuple[StoredObject, ...], tmp_path: Path) -> None:
        (tmp_path / "store").rename(tmp_path / "elsewhere")
        self.check_kept(settings, held[-1])
        with frazil.open(settings) as storage:
            topic = filled(storage, 100)
            with pytest.raises(ObjectDamaged, match="right object store"):
                parts_of(storage).uploader.finish(topic.log, 5.0)
        assert names_in(settings) == []
        (tmp_path / "store").rmdir()
        (tmp_path / "elsewhere").rename(tmp_path / "store")
        with frazil.open(settings) as storage:
            topic = storage.topic(TOPIC)
            parts_of(storage).uploader.finish(topic.log)
            storage.maintain()
            assert topic.log.first_offset > 0
            assert numbers_in(topic) == list(range(300))

    @pytest.mark.parametrize("damage", ["missing", "cut"])
    def test_rows_of_a_lost_object_stay_in_the_files(
        self, settings: Settings, held: tuple[StoredObject, ...], damage: str
    ) -> None:
        path = next(Path(name) for name in names_in(settings) if name.endswith(f"{held[1].first:020d}"))
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-100])
        self.check_kept(settings, held[1])


def test_a_folder_that_was_restored_from_a_copy_reads_its_objects(tmp_path: Path) -> None:
    """Objects are in the data folder unless another store is named, and a copy of everything has them too."""
    settings = settings_of(tmp_path, store=None)
    with frazil.open(settings) as storage:
        topic = filled(storage)
        parts_of(storage).uploader.finish(topic.log)
        storage.maintain()
        assert topic.log.first_offset > 500
    shutil.copytree(tmp_path / "data", tmp_path / "backup")
    shutil.rmtree(tmp_path / "data")
    shutil.copytree(tmp_path / "backup", tmp_path / "data")
    with frazil.open(settings) as storage:
        assert numbers_in(storage.topic(TOPIC)) == list(range(1_000))
