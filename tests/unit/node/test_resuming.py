"""Who knows where the table has the row before reads on from that file: the rest of the table is not looked through.

What is read never depends on it: where the table was rewritten, all files are looked for.
"""

from __future__ import annotations

import re

import pytest
from pyiceberg.manifest import ManifestFile
from tiers import NAME, payload, publish, remove_what_the_table_has, rewrite, rows_of

import frazil
from frazil.core.offsets import Place
from frazil.log.read.reader import BatchReader
from parts import table_rewrites
from parts.moving import HandMover

MOVES, EACH = 30, 100


@pytest.fixture
def topic(storage: frazil.Storage, mover: HandMover) -> frazil.Topic:
    """A table of many snapshots, each with a manifest of its own, and a log that has few of its rows."""
    topic = storage.topic(NAME)
    mover.end(topic)
    with mover.table(topic).transaction() as change:
        change.set_properties({"commit.manifest-merge.enabled": "false"})
    for _ in range(MOVES):
        publish(topic, EACH)
        mover.move(topic)
    publish(topic, 1_000)
    remove_what_the_table_has(storage, topic, MOVES * EACH)
    assert topic.log.first_offset > MOVES * EACH - 1_000
    return topic


class Manifests:
    """How many of them are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read = 0
        fetch = ManifestFile.fetch_manifest_entry

        def counted(manifest: ManifestFile, *args: object, **options: object) -> object:
            self.read += 1
            return fetch(manifest, *args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", counted)


@pytest.fixture
def manifests(monkeypatch: pytest.MonkeyPatch) -> Manifests:
    return Manifests(monkeypatch)


def place_of(topic: frazil.Topic, offset: int) -> Place:
    assert topic.log.history is not None
    return topic.log.history.places([offset])[offset]


def check(topic: frazil.Topic, start: int, after: Place) -> None:
    """All rows from there on, once and in order, whatever the place says."""
    offset = start
    for batch in BatchReader(topic.log, start, after=after):
        for found in batch.column("_payload").to_pylist():
            assert found == payload(offset)
            offset += 1
    assert offset == MOVES * EACH + 1_000


@pytest.mark.parametrize("start", [1, 1_999, 2_000, 2_001, 2_050])
def test_only_what_was_added_since_is_looked_at(topic: frazil.Topic, manifests: Manifests, start: int) -> None:
    after = place_of(topic, start - 1)
    manifests.read = 0
    check(topic, start, after)
    assert manifests.read == MOVES - (start - 1) // EACH


def test_an_older_place_is_as_good(topic: frazil.Topic, manifests: Manifests) -> None:
    """It is looked for now and then only, while the cursor moves on."""
    after = place_of(topic, 1_500)
    manifests.read = 0
    check(topic, 2_025, after)
    assert manifests.read == MOVES - 15


def test_an_expired_snapshot_does_not_matter_while_its_file_is_there(
    topic: frazil.Topic, mover: HandMover, manifests: Manifests
) -> None:
    after = place_of(topic, 1_999)
    table_rewrites.expire(mover.table(topic), kept=1)
    table = mover.table(topic)
    assert after.snapshot_id not in [snapshot.snapshot_id for snapshot in table.metadata.snapshots]
    manifests.read = 0
    check(topic, 2_000, after)
    assert manifests.read == MOVES - 19


def test_a_table_that_was_rewritten_is_looked_through(topic: frazil.Topic, mover: HandMover) -> None:
    after = place_of(topic, 1_999)
    table = mover.table(topic)
    rewrite(table, rows_of(table, [("_offset", "descending")]), [700, 1_500])
    table_rewrites.expire(mover.table(topic), kept=1)
    table_rewrites.remove_unneeded_files(mover.table(topic))
    check(topic, 2_000, after)


def test_rows_that_were_rewritten_before_the_place_was_found_are_found(
    topic: frazil.Topic, mover: HandMover, caplog: pytest.LogCaptureFixture
) -> None:
    """The file of the place is younger than those with the rows behind it."""
    caplog.set_level("INFO", "frazil.lake")
    table_rewrites.rewrite(mover.table(topic), "_offset < 1000", seed=1, cuts=0)
    after = place_of(topic, 950)
    check(topic, 951, after)
    assert re.search(r"rows from offset 951 on are not all behind file://", caplog.text)


def test_statistics_that_promise_more_than_a_file_holds_are_noticed(
    topic: frazil.Topic, mover: HandMover, caplog: pytest.LogCaptureFixture
) -> None:
    """A rewritten file spans all rows but has every second hundred of them only; the others are in older files."""
    caplog.set_level("INFO", "frazil.lake")
    first, last = "_offset >= 0 and _offset < 1000", f"_offset >= {MOVES * EACH - 100}"
    table_rewrites.rewrite(mover.table(topic), f"({first}) or {last}", seed=1, cuts=0)
    check(topic, 951, place_of(topic, 950))
    assert "replanning the rest, from all files" in caplog.text


def test_the_place_in_another_table_does_no_harm(topic: frazil.Topic) -> None:
    after = Place(1, "file:///nowhere/data/1.parquet", 10_000)
    check(topic, 2_000, after)
