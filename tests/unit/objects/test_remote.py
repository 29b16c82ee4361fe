"""What a store answers is told as the port says, whatever kind of store it is."""

from __future__ import annotations

import errno
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError

from frazil.core.errors import ObjectStoreUnavailable
from frazil.core.settings import make_settings
from frazil.objects.opening import open_objects
from frazil.objects.remote import ObstoreObjects
from frazil.objects.store import ObjectExists, ObjectStore


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    place = {"bucket": str(tmp_path)} if request.param == "memory" else {"path": str(tmp_path)}
    return open_objects(make_settings({"objects": {"enabled": True, "store": {"type": request.param, **place}}}))


def names(store: ObjectStore) -> list[str]:
    return [info.name for info in store.walk("log/")]


def test_a_missing_object_among_those_to_be_removed_saves_none_of_them(store: ObjectStore) -> None:
    there = [f"log/{number:03d}" for number in range(50)]
    for name in there:
        store.create(name, b"rows")
    store.delete(["log/missing", *there[:-1], "log/also missing"])
    assert names(store) == there[-1:]
    store.delete(["log/missing"])
    assert names(store) == there[-1:]


def test_a_name_that_another_request_is_about_to_take_is_asked_for_again(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 refuses it with 409 while a request that timed out here is still under way there."""

    def conflicts(*_: object, **__: object) -> None:
        raise AlreadyExistsError("409 ConditionalRequestConflict")

    monkeypatch.setattr(obstore, "put", conflicts)
    with pytest.raises(ObjectStoreUnavailable):
        store.create("log/first", b"rows")
    monkeypatch.undo()
    store.create("log/first", b"rows")
    assert store.get("log/first") == b"rows"


class TestLocal:
    """A power cut leaves no name with a part of an object: the next process would take it for damage."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> ObstoreObjects:
        found = open_objects(
            make_settings({"objects": {"enabled": True, "store": {"type": "local", "path": tmp_path}}})
        )
        assert isinstance(found, ObstoreObjects)
        return found

    def test_an_object_gets_its_name_once_its_bytes_are_durable(
        self, store: ObstoreObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path, seen = tmp_path / "wal" / "log" / "first", list[tuple[bytes, bool]]()
        syncs = ObstoreObjects._sync_file

        def sync(self: ObstoreObjects, file: Path) -> None:
            seen.append((file.read_bytes(), path.exists()))
            syncs(self, file)

        monkeypatch.setattr(ObstoreObjects, "_sync_file", sync)
        store.create("log/first", b"rows")
        assert seen[0] == (b"rows", False)
        assert path.read_bytes() == b"rows"
        assert names(store) == ["log/first"]

    def test_an_object_whose_bytes_are_not_durable_has_no_name(
        self, store: ObstoreObjects, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fails(*_: object) -> None:
            raise OSError(errno.EIO, "the disk is broken")

        monkeypatch.setattr(ObstoreObjects, "_sync_file", fails)
        with pytest.raises(ObjectStoreUnavailable, match="broken"):
            store.create("log/first", b"rows")
        assert names(store) == []
        monkeypatch.undo()
        store.create("log/first", b"rows")

    def test_of_two_that_create_a_name_one_wins(self, store: ObstoreObjects) -> None:
        store.create("log/first", b"rows")
        with pytest.raises(ObjectExists):
            store.create("log/first", b"other")
        store.create("log/first", b"rows")
        assert store.get("log/first") == b"rows"
        assert names(store) == ["log/first"]
