"""A store that serves a file by half: whoever reads or writes the table is refused, and goes on once the file is whole.

PyIceberg alone takes a manifest list that ends early for a shorter one: readers would miss rows, and the next commit
would leave them out of the table for good.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pyiceberg.table import Table
from tiers import NAME, publish, remove_what_the_table_has

import frazil
from frazil.core.settings import Settings
from frazil.lake.files.manifests import check_whole
from parts.every_reader import FACES, EveryReader
from parts.in_process import MoverHere
from parts.moving import HandMover

XML = b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>try again</Message></Error>'
Damage = Callable[[bytes], bytes]

DAMAGES: dict[str, list[Damage]] = {
    "cut": [lambda data, part=part: data[: len(data) * part // 7] for part in range(7)],  # type: ignore[misc]
    "cut at a block": [lambda data: data[: after_header(data)]],
    "an error in place of it": [lambda _: XML],
}


def after_header(data: bytes) -> int:
    """Where the header of an Avro file ends: the last 16 bytes of the file say so, for they stand there first."""
    return data.index(data[-16:]) + 16


def files_of(table: Table) -> dict[str, Path]:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    (manifest, *_) = snapshot.manifests(table.io)
    (task, *_) = sorted(table.scan().plan_files(), key=lambda task: task.file.file_path)
    places = {
        "metadata": table.metadata_location,
        "manifest list": snapshot.manifest_list,
        "manifest": manifest.manifest_path,
        "data": task.file.file_path,
    }
    return {kind: Path(urlsplit(place).path) for kind, place in places.items()}


def damaged(path: Path) -> Iterator[None]:
    whole = path.read_bytes()
    for name, damages in DAMAGES.items():
        if name == "cut at a block" and not whole.startswith(b"Obj"):
            continue
        for damage in damages:
            path.write_bytes(damage(whole))
            try:
                yield
            finally:
                path.write_bytes(whole)


@pytest.fixture
def every(settings: Settings, topic: frazil.Topic) -> EveryReader:
    return EveryReader(settings, topic)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("kind", ["metadata", "manifest list", "manifest", "data"])
def test_a_file_that_is_not_whole_is_refused_and_read_once_it_is(
    topic: frazil.Topic, mover: HandMover, every: EveryReader, face: str, kind: str
) -> None:
    expected = every.rows(face)
    for _ in damaged(files_of(mover.table(topic))[kind]):
        with pytest.raises((frazil.LakeUnavailable, frazil.TableDamaged)):
            every.rows(face)
    assert every.rows(face) == expected


@pytest.mark.parametrize("kind", ["metadata", "manifest list", "manifest", "data"])
def test_nothing_is_proven_by_a_file_that_is_not_whole(
    topic: frazil.Topic, mover: HandMover, every: EveryReader, kind: str
) -> None:
    for _ in damaged(files_of(mover.table(topic))[kind]):
        with contextlib.suppress(frazil.LakeUnavailable):  # of a lake, where no topic gets a right answer
            assert not every.proof().proven
    assert every.proof().proven


@pytest.mark.parametrize("kind", ["metadata", "manifest list", "manifest"])
def test_no_commit_leaves_out_what_a_cut_file_names(settings: Settings, kind: str) -> None:
    """The fourth commit merges the manifests of the first three, so it reads these as well as their list."""
    with frazil.open(settings) as storage:
        topic = storage.topic(NAME)
        every, moved = EveryReader(settings, topic), 0
        for _ in range(3):
            publish(topic, 10)
            MoverHere(settings, storage).tick()
        table = HandMover(settings).table(topic)
        with table.transaction() as change:
            change.set_properties({"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "4"})
        for _ in damaged(files_of(HandMover(settings).table(topic))[kind]):
            publish(topic, 10)
            report = MoverHere(settings, storage).tick()
            (found,) = report.topics.values()
            assert found.error is not None
            assert report.rows == 0
            moved += 1
        assert moved > 5
        mover = MoverHere(settings, storage)
        (found,) = mover.tick().topics.values()
        assert found.error is None
        assert [offset for offset, _ in every.rows("read_only")] == list(range(topic.stats().end))
        assert every.proof().proven


def test_an_avro_file_is_whole_to_its_last_byte_or_not_at_all(topic: frazil.Topic, mover: HandMover) -> None:
    for kind in ("manifest list", "manifest"):
        data = files_of(mover.table(topic))[kind].read_bytes()
        check_whole(data, kind)
        for size in range(len(data)):
            if data[:size][-16:] != data[-16:]:  # cut behind a block it is whole by itself, and the counts must tell
                with pytest.raises(OSError, match=r"not (whole|an Avro file)"):
                    check_whole(data[:size], kind)
        with pytest.raises(OSError, match="is not whole"):
            check_whole(data + b"\0", kind)


@pytest.mark.parametrize("is_in_log", [True, False])
def test_an_older_version_of_the_metadata_loses_and_doubles_nothing(
    settings: Settings, storage: frazil.Storage, mover: HandMover, is_in_log: bool
) -> None:
    """Rows that the log still has are moved again from there; where it has not, readers and the mover are refused."""
    topic, every = storage.topic(NAME), EveryReader(settings, storage.topic(NAME))
    publish(topic, 2_000)
    mover.move(topic)
    older = files_of(mover.table(topic))["metadata"].read_bytes()
    publish(topic, 2_000)
    mover.move(topic)
    if not is_in_log:
        remove_what_the_table_has(storage, topic, 4_000)
    publish(topic, 100)
    newest = files_of(mover.table(topic))["metadata"]
    right = newest.read_bytes()
    newest.write_bytes(older)
    for face in ("embedded", "spark", "sql"):
        if is_in_log:
            assert [offset for offset, _ in every.rows(face)] == list(range(4_100))
        else:
            with pytest.raises(frazil.RowsMissing):
                every.rows(face)
    report = MoverHere(settings, storage).tick()
    assert report.rows == (2_100 if is_in_log else 0)
    newest.write_bytes(right)
    assert MoverHere(settings, storage).errors() == {NAME: None}
    for face in FACES:
        assert [offset for offset, _ in every.rows(face)] == list(range(4_100))
    assert every.proof().proven
