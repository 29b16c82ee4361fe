"""A log that nobody has open is told by its files: what its next owner would refuse, SQL and `verify` refuse too."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import frazil
from frazil.core.disk import LocalDisk
from frazil.core.settings import Settings
from frazil.log.info import LogList
from frazil.log.repair.survey import SegmentFrames
from frazil.log.storage import open_storage
from frazil.node.query.session import SqlSession
from frazil.node.tiers.logs import FileView
from frazil.node.verify.proofs import prove
from frazil.node.verify.verify import TopicProof
from frazil.testing import FaultyDisk
from parts.moving import HandMover

NAME = "/shop/orders"
COUNT = "select count(*), count(distinct _offset) from shop.orders"

Damage = Callable[[Path], None]


def count(settings: Settings, query: str = COUNT) -> list[int]:
    with SqlSession(settings, FileView(settings)) as session:
        return [value for batch in session.run(query).batches for row in batch.to_pylist() for value in row.values()]


def proofs(settings: Settings) -> dict[str, TopicProof]:
    return {proof.topic: proof for proof in prove(settings, None, lambda _: lambda _: None)}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Ten rows in the table and in the log, and five in the log alone; and another topic."""
    settings = Settings.of_folder(tmp_path / "data")
    with frazil.open(settings) as storage:
        storage.topic("/shop/other").publish("whole")
        topic = storage.topic(NAME)
        for number in range(10):
            topic.publish(f"order {number}")
        HandMover(settings).move(topic)
        for number in range(5):
            topic.publish(f"late order {number}")
    return settings


def the_segment(topic: Path) -> Path:
    (found,) = topic.glob("*.wal")
    return found


def frame(topic: Path, index: int) -> tuple[int, int]:
    """Where a frame is in the file, and where it ends."""
    frames = SegmentFrames(LocalDisk(), the_segment(topic))
    try:
        found = list(frames)[index]
    finally:
        frames.close()
    return found.position, found.position + found.bytes


def overwrite(topic: Path, position: int, new: bytes) -> None:
    with the_segment(topic).open("r+b") as file:
        file.seek(position)
        file.write(new)


def cut_before_the_third_last_row(topic: Path) -> None:
    with the_segment(topic).open("r+b") as file:
        file.truncate(frame(topic, -3)[0])


def last_row_with_other_bytes(topic: Path) -> None:
    overwrite(topic, frame(topic, -1)[1] - 16, b"wrong")


def third_last_row_of_another_length(topic: Path) -> None:
    overwrite(topic, frame(topic, -3)[0] + 8, b"\x08\x00\x01\x00")


def third_last_row_overwritten_with_zeros(topic: Path) -> None:
    start, end = frame(topic, -3)
    overwrite(topic, start, bytes(end - start))


def schema_frame_with_other_bytes(topic: Path) -> None:
    overwrite(topic, 20, b"wrong")


def record_that_is_none(topic: Path) -> None:
    (topic / "topic.json").write_text("nothing")


def no_segment(topic: Path) -> None:
    the_segment(topic).unlink()


def first_segment_lost(topic: Path) -> None:
    the_segment(topic).rename(topic / f"{7:020d}.wal")


@pytest.mark.parametrize(
    "damage",
    [
        cut_before_the_third_last_row,
        last_row_with_other_bytes,
        third_last_row_of_another_length,
        third_last_row_overwritten_with_zeros,
        schema_frame_with_other_bytes,
        record_that_is_none,
        no_segment,
        first_segment_lost,
    ],
)
def test_a_log_that_lost_acknowledged_rows_is_neither_proven_nor_queried(settings: Settings, damage: Damage) -> None:
    assert count(settings) == [15, 15]
    assert proofs(settings)[NAME].proven
    damage(settings.log_folder / "shop" / "orders")
    with pytest.raises(frazil.CorruptLog):
        count(settings)
    found = proofs(settings)
    assert not found[NAME].proven
    assert found["/shop/other"].proven
    assert count(settings, "select count(*) from shop.other") == [1]
    with frazil.open(settings) as storage, pytest.raises(frazil.CorruptLog):
        storage.topic(NAME)


def test_a_torn_tail_is_no_row_and_no_damage(settings: Settings, tmp_path: Path) -> None:
    crashed = Settings.of_folder(tmp_path / "crashed")
    with frazil.open(settings) as storage:
        storage.topic(NAME).publish("acknowledged")
        shutil.copytree(settings.data, crashed.data)
    topic = crashed.log_folder / "shop" / "orders"
    with the_segment(topic).open("r+b") as file:
        end = frame(topic, -1)[1]
        whole = file.read()[slice(*frame(topic, -1))]
        file.truncate(end)
        file.seek(end)
        file.write(whole[: len(whole) // 2])
    view = FileView(crashed)
    ends = {str(info.topic): info.durable_end for info in view.logs()}
    assert (ends[NAME], view.problems) == (16, {})


def test_a_damaged_partition_is_not_left_out_of_its_topic(tmp_path: Path) -> None:
    settings = Settings.of_folder(tmp_path / "data")
    with frazil.open(settings) as storage:
        for partition in storage.create_partitions(NAME, 2):
            partition.publish("tea")
    assert count(settings, "select count(*) from shop.orders") == [2]
    schema_frame_with_other_bytes(settings.log_folder / "shop" / "orders-part-1")
    with pytest.raises(frazil.CorruptLog, match="orders-part-1"):
        count(settings, "select count(*) from shop.orders")


def test_a_name_in_a_query_does_not_lead_out_of_the_folder(settings: Settings) -> None:
    outside = settings.log_folder.parent / "elsewhere" / "orders"
    outside.mkdir(parents=True)
    (outside / "topic.json").write_text("{}")
    with pytest.raises(frazil.InvalidInput, match="there is no topic or table"):
        count(settings, 'select count(*) from "../elsewhere".orders')


def test_a_log_that_the_disk_does_not_let_be_opened_is_left_out_of_the_list_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk, settings = FaultyDisk(), Settings.of_folder("/data")
    with open_storage(settings, disk=disk) as storage:
        for name in "abc":
            storage.topic(f"/default/{name}").publish("tea")
    with open_storage(settings, disk=disk) as storage:
        logs = LogList(storage)
        storage.topic("/default/a")
        disk.fail("open", errno.EIO, times=2)  # the main thread tries it without a change to the disk first
        assert [info.topic.topic for info in logs.read()] == ["a", "c"]
        assert "/default/b is not moved to its table" in caplog.text
        assert [info.topic.topic for info in logs.read()] == ["a", "b", "c"]
