"""A partitioned topic is made and deleted as one: all its partitions or none, whatever fails on the way."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pyarrow as pa
import pytest

import frazil
from frazil.core.errors import InvalidInput, PartitioningDiffers, TopicExists, TopicNotFound
from frazil.core.settings import RetentionSettings
from frazil.testing import FaultyDisk, PowerCut

TOPIC = "/default/orders"
PARTS = [f"{TOPIC}-part-{number}" for number in range(3)]
WEEK = RetentionSettings(age_ms=604_800_000)
DATA = Path("/data")


def test_all_partitions_are_made_with_the_retention_and_stay(tmp_path: Path) -> None:
    with frazil.open(tmp_path) as storage:
        made = storage.create_partitions(TOPIC, 3, retention=WEEK)
        assert [topic.name for topic in made] == PARTS
        assert made[2].publish("tea") == 0
    with frazil.open(tmp_path) as storage:
        assert storage.topics() == PARTS
        assert [storage.record(name).retention for name in PARTS] == [WEEK] * 3


@pytest.mark.parametrize("count", [0, -1, 101, True, "3", 2.0])
def test_a_number_of_partitions_that_cannot_be_names_the_field(count: int) -> None:
    with frazil.open(None) as storage:
        with pytest.raises(InvalidInput) as refused:
            storage.create_partitions(TOPIC, count)
        assert refused.value.fields["field"] == "partitions"
        with pytest.raises(InvalidInput):
            storage.create_partitions(PARTS[0], 2)
        assert storage.topics() == []


def test_a_topic_has_partitions_or_not_and_never_both() -> None:
    with frazil.open(None) as storage:
        storage.create_topic("/default/plain")
        for refused in (
            lambda: storage.create_partitions("/default/plain", 2),
            lambda: storage.topic("/default/plain-part-0"),
            lambda: storage.create_topic("/default/plain-part-7"),
        ):
            with pytest.raises(PartitioningDiffers):
                refused()
        storage.create_partitions(TOPIC, 2)
        for refused in (lambda: storage.topic(TOPIC), lambda: storage.create_topic(TOPIC)):
            with pytest.raises(PartitioningDiffers):
                refused()
        assert storage.topics() == [*PARTS[:2], "/default/plain"]
        storage.delete_topic("/default/plain")
        storage.create_partitions("/default/plain", 1)


def test_a_topic_that_is_there_is_not_made_again_nor_made_larger() -> None:
    with frazil.open(None) as storage:
        storage.create_partitions(TOPIC, 2)
        for count in (1, 2, 3):
            with pytest.raises(TopicExists):
                storage.create_partitions(TOPIC, count)
        assert storage.topics() == PARTS[:2]


def test_a_partition_that_is_somebodys_is_not_taken_over() -> None:
    """One that has rows, columns or a retention of its own, or a number that was not asked for."""
    schema = pa.schema([pa.field("celsius", pa.float64())])
    with frazil.open(None) as storage:
        storage.create_topic("/default/rows-part-1").publish("tea")
        storage.create_topic("/default/typed-part-1", schema=schema)
        storage.create_topic("/default/kept-part-1", retention=WEEK)
        storage.create_topic("/default/more-part-3")
        before = storage.topics()
        for name in ("rows", "typed", "kept", "more"):
            with pytest.raises(TopicExists):
                storage.create_partitions(f"/default/{name}", 3)
        assert storage.topics() == before


@pytest.mark.parametrize("operation", ["make_folder", "rename", "sync_folder"])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_creation_that_fails_leaves_nothing(operation: str, after: int) -> None:
    disk = FaultyDisk()
    with frazil.open(DATA, disk=disk) as storage:
        disk.fail(operation, 5, after=after)  # type: ignore[arg-type]
        with pytest.raises(OSError, match="5"):
            storage.create_partitions(TOPIC, 3)
        assert disk.failures_left == 0
        assert storage.topics() == []
        assert len(storage.create_partitions(TOPIC, 3)) == 3


def test_a_creation_that_a_power_cut_ended_is_completed_by_the_same_call() -> None:
    """At every step of it."""
    left = set()
    for steps in range(1_000):
        disk = FaultyDisk()
        storage = frazil.open(DATA, disk=disk)
        disk.cut_power_after(steps)
        try:
            storage.create_partitions(TOPIC, 3, retention=WEEK)
            done = True
        except PowerCut:
            done = False
        disk.cut_power_after(None)
        with contextlib.suppress(Exception):
            storage.close()
        with frazil.open(DATA, disk=disk.crash(random.Random(steps))) as again:
            left.add(tuple(again.topics()))
            if PARTS[0] in again.topics():
                with pytest.raises(TopicExists):
                    again.create_partitions(TOPIC, 3, retention=WEEK)
            else:
                again.create_partitions(TOPIC, 3, retention=WEEK)
            assert again.topics() == PARTS
        if done:
            break
    assert left == {(), (PARTS[2],), (PARTS[1], PARTS[2]), tuple(PARTS)}


def test_the_topic_itself_is_deleted_with_all_its_partitions() -> None:
    with frazil.open(None) as storage:
        for topic in storage.create_partitions(TOPIC, 3):
            topic.publish("tea")
        storage.create_topic("/default/orders2")
        storage.delete_topic(TOPIC)
        assert storage.topics() == ["/default/orders2"]
        with pytest.raises(TopicNotFound):
            storage.delete_topic(TOPIC)
        assert [topic.stats().end for topic in storage.create_partitions(TOPIC, 2)] == [0, 0]


def test_a_call_on_the_topic_itself_says_which_name_to_use() -> None:
    with frazil.open(None) as storage:
        storage.create_partitions(TOPIC, 2)
        for refused in (
            lambda: storage.topic(TOPIC, create=False),
            lambda: storage.record(TOPIC),
            lambda: storage.set_retention(TOPIC, WEEK),
        ):
            with pytest.raises(TopicNotFound, match=f"name one of them, as {PARTS[0]}"):
                refused()


def test_a_partition_has_one_spelling() -> None:
    with frazil.open(None) as storage:
        storage.topic("/default/orders-part-0").publish("tea")
        for other in ("/default/orders-part-00", "/default/orders-part-000000000"):
            with pytest.raises(frazil.InvalidName, match="the same partition as /default/orders-part-0,"):
                storage.topic(other)
        storage.topic("/default/orders-part-01")
        with pytest.raises(frazil.InvalidName, match="the same partition as /default/orders-part-01,"):
            storage.topic("/default/orders-part-1")
        storage.topic("/default/others-part-00")
        assert len(storage.topics()) == 3
