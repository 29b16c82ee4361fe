"""Freshness: the age of the oldest durable row that the table lacks, by what the mover told."""

from __future__ import annotations

from pathlib import Path

import pytest

import frazil
from frazil.core.settings import Settings, make_settings
from frazil.log.storage import open_storage
from frazil.node.movers.status_file import write_status
from frazil.node.movers.table_progress import StatusReader
from frazil.node.topics.freshness import Freshness, TopicFreshness
from frazil.testing import FakeClock

TOPIC = "/shop/orders"


class World:
    def __init__(self, folder: Path, *, always: bool = True, **topics: object) -> None:
        self.settings: Settings = make_settings({"data": folder, "topics": topics})
        self.clock = FakeClock()
        self.storage = open_storage(self.settings, clock=self.clock)
        self.freshness = Freshness(self.storage, StatusReader(self.settings), self.clock, always=always)

    def tell(self, topic: frazil.Topic, table_end: int, log_id: str | None = None) -> None:
        told = {topic.name: {"log_id": log_id or topic.log.log_id, "table_end": table_end}}
        write_status(self.settings, self.clock, "here", 1, {"state": "running", "topics": told})

    def one(self) -> TopicFreshness:
        (found,) = self.freshness.read()
        return found


@pytest.mark.parametrize("is_cached", [False, True])
def test_it_is_the_age_of_the_first_row_that_the_table_lacks(tmp_path: Path, is_cached: bool) -> None:
    world = World(tmp_path)
    with world.storage:
        topic = world.storage.topic(TOPIC)
        assert (world.one().lag_rows, world.one().age_ms) == (0, 0)
        for _ in range(3):
            topic.publish("x")
            world.clock.advance(1_000_000)
        if not is_cached:
            world.storage.cache.forget(topic.log.cache)
        assert (world.one().lag_rows, world.one().age_ms) == (3, 3_000)
        world.tell(topic, 2)
        assert (world.one().lag_rows, world.one().age_ms) == (1, 1_000)
        world.clock.advance(500_000)
        assert world.one().age_ms == 1_500, "a mover that says nothing more shows as an age that grows"
        world.tell(topic, 3)
        assert (world.one().lag_rows, world.one().age_ms) == (0, 0)


def test_looking_does_not_count_as_reading(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world.storage:
        world.storage.topic(TOPIC).publish("x")
        world.freshness.read()
        metrics = world.storage.metrics
        assert (metrics.reads_cached, metrics.reads_from_files) == (0, 0)


def test_what_was_told_of_a_topic_made_again_says_nothing_of_the_new_one(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world.storage:
        topic = world.storage.topic(TOPIC)
        topic.publish("x")
        world.tell(topic, 1, log_id="another")
        assert world.one().lag_rows == 1


def test_an_objective_is_missed_beyond_it_and_met_again_by_the_next_commit(tmp_path: Path) -> None:
    world = World(tmp_path, **{"/shop/*": {"freshness_objective_ms": 2_000}})
    with world.storage:
        topic = world.storage.topic(TOPIC)
        world.storage.topic("/other/one").publish("x")
        topic.publish("x")
        world.clock.advance(2_000_000)
        assert world.freshness.missed() == []
        world.clock.advance(1_000)
        (missed,) = world.freshness.missed()
        assert (missed.topic, missed.age_ms, missed.objective_ms) == (TOPIC, 2_001, 2_000)
        world.tell(topic, 1)
        assert world.freshness.missed() == []


def test_without_any_mover_only_topics_with_an_objective_count(tmp_path: Path) -> None:
    world = World(tmp_path, always=False, **{TOPIC: {"freshness_objective_ms": 1}})
    with world.storage:
        topic = world.storage.topic(TOPIC)
        world.storage.topic("/other/one").publish("x")
        assert [one.topic for one in world.freshness.read()] == [TOPIC]
        world.tell(topic, 0)
        assert len(world.freshness.read()) == 2, "a mover has told of the folder"


def test_topics_that_are_not_moved_have_no_freshness(tmp_path: Path) -> None:
    world = World(tmp_path, **{TOPIC: {"enabled": False}})
    with world.storage:
        world.storage.topic(TOPIC).publish("x")
        assert world.freshness.read() == []
    with pytest.raises(frazil.InvalidSettings, match="freshness_objective_ms is for topics that are moved"):
        make_settings({"topics": {TOPIC: {"enabled": False, "freshness_objective_ms": 5}}})


def test_a_row_that_cannot_be_read_has_waited_for_as_long_as_it_is_known(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world.storage:
        topic = world.storage.topic(TOPIC)
        topic.publish("x")
        world.storage.cache.forget(topic.log.cache)
        topic.log.segments[0].path.unlink()
        assert world.one().age_ms == 0
        world.clock.advance(7_000_000)
        assert world.one().age_ms == 7_000
