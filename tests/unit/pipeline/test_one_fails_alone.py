"""What is wrong with one topic or one table is its own: the others are moved, and the one is named and tried again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import StringType

import frazil
from frazil.core.settings import Settings, make_settings
from frazil.node.health.readiness import MoverProblems
from frazil.node.movers.status import pipeline_status
from frazil.node.movers.status_file import StatusFile, write_status
from frazil.node.movers.table_progress import StatusReader
from frazil.pipeline.move.tasks import RangeInput, RangeOutput
from frazil.testing import FakeClock
from frazil.testing.jobs import InProcessJobs
from parts.in_process import MoverHere

BAD, GOOD = "/bad/orders", "/good/orders"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings({"data": tmp_path / "data"})


def set_property(name: str, value: str) -> Callable[[Table], None]:
    def change(table: Table) -> None:
        with table.transaction() as transaction:
            transaction.set_properties({name: value})

    return change


UNUSABLE = {
    "write.format.default": "orc",
    "write.parquet.compression-level": "x",
    "commit.manifest.min-count-to-merge": "x",
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_property_that_cannot_be_used_stops_its_own_topic_alone(settings: Settings, name: str) -> None:
    with frazil.open(settings) as storage:
        here = MoverHere(settings, storage)
        storage.topic(BAD).publish("before")
        assert here.errors() == {BAD: None}
        set_property(name, UNUSABLE[name])(here.table(BAD))
        storage.topic(BAD).publish("after")
        storage.topic(GOOD).publish("innocent")
        here.mover.forget()
        errors = here.errors()
        assert errors[GOOD] is None
        assert UNUSABLE[name].lower() in str(errors[BAD]).lower()
        assert len(here.rows(GOOD)) == 1
        set_property(name, {"write.format.default": "parquet"}.get(name, "8"))(here.table(BAD))
        assert here.errors() == {BAD: None, GOOD: None}
        assert [row["_payload"] for row in here.rows(BAD)] == [b"before", b"after"]


def test_a_commit_that_was_never_asked_for_leaves_no_data_files(settings: Settings) -> None:
    with frazil.open(settings) as storage:
        here = MoverHere(settings, storage)
        storage.topic(BAD).publish("before")
        assert here.errors() == {BAD: None}
        set_property("commit.manifest.min-count-to-merge", "x")(here.table(BAD))
        here.mover.forget()
        files = set((settings.data or Path()).rglob("*.parquet"))
        storage.topic(BAD).publish("after")
        assert here.errors()[BAD] is not None
        assert set((settings.data or Path()).rglob("*.parquet")) == files


def test_another_engine_may_partition_by_a_column_that_it_added(settings: Settings) -> None:
    with frazil.open(settings) as storage:
        here = MoverHere(settings, storage)
        storage.topic(BAD).publish("before")
        assert here.errors() == {BAD: None}
        with here.table(BAD).update_schema() as schema:
            schema.add_column("region", StringType())
        with here.table(BAD).update_spec() as spec:
            spec.add_field("region", IdentityTransform(), "region")
        storage.topic(BAD).publish("after")
        here.mover.forget()
        assert here.errors() == {BAD: None}
        assert here.rows(BAD, "_payload", "region") == [
            {"_payload": b"before", "region": None},
            {"_payload": b"after", "region": None},
        ]


def test_a_failing_topic_rests_longer_after_each_try_and_is_shown(settings: Settings) -> None:
    clock = FakeClock()
    with frazil.open(settings) as storage:
        here = MoverHere(settings, storage, clock=clock)
        storage.topic(BAD).publish("before")
        storage.topic(GOOD).publish("innocent")
        here.tick()
        set_property("write.parquet.compression-level", "x")(here.table(BAD))
        here.mover.forget()
        storage.topic(BAD).publish("after")
        tries, clock_s = [], 0
        while clock_s < 40:
            tries += [clock_s] * here.tick(all_of_it=False).failures
            clock.advance(1_000_000)
            clock_s += 1
        rests = [later - earlier for earlier, later in itertools.pairwise(tries)]
        assert len(rests) > 2
        assert rests == sorted(set(rests))  # each longer than the one before
        status = StatusFile(lambda told: write_status(settings, clock, "here", 1, told), clock)
        status.ticked(here.tick(all_of_it=False))
    (bad, good) = pipeline_status(settings, clock).topics
    assert (bad.topic, good.topic, good.last_error) == (BAD, GOOD, None)
    assert "compression-level" in str(bad.last_error)
    (problem,) = [
        one
        for one in MoverProblems(StatusReader(settings), clock, has_mover=False)()
        if one["error"] == "tables_failing"
    ]
    assert problem["topic"] == BAD
    assert "compression-level" in problem["message"]


class Crashes(InProcessJobs):
    """A worker that dies of one topic's rows, and takes the job with it."""

    def __init__(self, poison: str) -> None:
        super().__init__()
        self.poison = poison
        self.is_gone = False
        self.jobs = 0

    def is_alive(self) -> bool:
        return not self.is_gone

    def run(self, tasks: Sequence[Sequence[RangeInput]]) -> list[RangeOutput]:
        self.jobs += 1
        if self.is_gone or any(one.source.topic == self.poison for task in tasks for one in task):
            raise RuntimeError("a worker has crashed")
        return super().run(tasks)


def test_a_topic_whose_rows_crash_the_worker_is_found_and_the_others_are_moved(settings: Settings) -> None:
    names = [BAD, *(f"/good/topic-{number}" for number in range(8))]
    with frazil.open(settings) as storage:
        for name in names:
            storage.topic(name).publish("row")
        jobs = Crashes(BAD)
        errors = MoverHere(settings, storage, jobs=jobs).errors()
    assert [name for name in names if errors[name] is not None] == [BAD]
    assert "a worker has crashed" in str(errors[BAD])
    assert jobs.jobs <= 1 + 2 * 4  # halves, not one job for each topic


def test_a_runner_that_is_gone_is_no_topics_error(settings: Settings) -> None:
    with frazil.open(settings) as storage:
        storage.topic(GOOD).publish("row")
        jobs = Crashes(BAD)
        jobs.is_gone = True
        with pytest.raises(RuntimeError, match="crashed"):
            MoverHere(settings, storage, jobs=jobs).tick()


def test_a_token_that_is_no_number_is_its_own_topics_error(settings: Settings) -> None:
    with frazil.open(settings) as storage:
        here = MoverHere(settings, storage)
        storage.topic(BAD).publish("before")
        here.tick()
        set_property(f"frazil.{storage.topic(BAD).log.log_id}.end", "many")(here.table(BAD))
        here.mover.forget()
        storage.topic(GOOD).publish_many(pa.record_batch({"_payload": [b"innocent"]}))
        errors = here.errors()
    assert errors[GOOD] is None
    assert "many" in str(errors[BAD])
