"""One scenario that touches every step of the protocol, and a power cut before each single operation of the disk.

The disk is looked at in several of the states in which the cut may leave it. In each of them the log must open,
hold what it promised, and go on.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import (
    SCHEMA,
    WIDER_SCHEMA,
    FakeClock,
    FaultyDisk,
    Model,
    PowerCut,
    TopicModel,
    abandon,
    adopt_storage,
    check_storage,
    copied,
    note_beginnings,
    opened,
    publish_one_more,
    publish_values,
    settings_of,
)

from frazil import FrazilError, RetentionSettings, Settings, Storage, SyncMode
from frazil.testing import Operation

KIB = 1024
SECOND_US = 1_000_000

pytestmark = pytest.mark.timeout(300)

STATES = [1, pytest.param(3, marks=pytest.mark.long)]
"""How many states of the disk are looked at for one cut. Each cut has states of its own, and there are hundreds."""


class Scenario:
    """Runs a storage through its life, and keeps the model of what it promised up to each moment."""

    def __init__(self, disk: FaultyDisk, settings: Settings) -> None:
        self.disk = disk
        self.settings = settings
        self.clock = FakeClock()
        self.model: Model = {}
        self.storage: Storage | None = None
        self.count = 0

    def run(self) -> None:
        self.reopen()
        self.create("/a/messages")
        self.create("/a/typed", typed=True)
        for _ in range(9):
            self.publish("/a/messages", 1, 9 * KIB)
        self.publish("/a/messages", 3, 5 * KIB)
        self.publish("/a/typed", 2, 7 * KIB)
        self.publish("/a/messages", 1, 90 * KIB)  # larger than a segment
        self.publish("/a/messages", 2, 100)
        self.change_schema("/a/typed")
        self.publish("/a/typed", 2, 3 * KIB)
        self.sync("/a/messages")
        self.create("/b/short-lived")
        self.publish("/b/short-lived", 1, 10)
        self.delete("/b/short-lived")
        self.clock.step_wall(-SECOND_US)
        self.publish("/a/messages", 1, 20 * KIB)
        self.reopen()
        self.publish("/a/messages", 1, 3 * KIB)
        self.create("/b/short-lived")
        self.clock.step_wall(2 * SECOND_US)
        for _ in range(4):
            self.publish("/a/messages", 1, 30 * KIB)
        self.maintain()
        self.publish("/a/messages", 1, 30 * KIB)
        self.clock.step_wall(3600 * SECOND_US)
        self.maintain()  # removes every row by its age
        self.publish("/a/messages", 4, 100)
        self.publish("/b/short-lived", 1, 100)
        self.reopen()
        self.publish("/a/messages", 1, 100)

    def reopen(self) -> None:
        if self.storage is not None:
            self.storage.close()
            for topic in self.model.values():
                if self.settings.wal.sync_mode is not SyncMode.NONE:
                    topic.durable = len(topic.rows)
        self.storage = opened(self.disk, self.settings, self.clock)
        check_storage(self.storage, self.model)
        self._note_durable()

    def create(self, name: str, *, typed: bool = False) -> None:
        assert self.storage is not None
        self.model[name] = TopicModel(typed=typed)
        self.storage.create_topic(name, schema=SCHEMA if typed else None)
        self.model[name].certain = True

    def delete(self, name: str) -> None:
        assert self.storage is not None
        self.model[name].certain = False
        self.storage.delete_topic(name)
        del self.model[name]

    def change_schema(self, name: str) -> None:
        assert self.storage is not None
        self.storage.change_schema(name, WIDER_SCHEMA)

    def publish(self, name: str, count: int, size: int) -> None:
        assert self.storage is not None
        group = []
        for _ in range(count):
            self.count += 1
            group.append(random.Random(self.count).randbytes(size))
        with self.model[name].publishing(group):
            assert publish_values(self.storage.topic(name), group) == len(self.model[name].rows)
        self._note_durable()

    def sync(self, name: str) -> None:
        assert self.storage is not None
        assert self.storage.topic(name).sync() == len(self.model[name].rows)
        self._note_durable()

    def maintain(self) -> None:
        assert self.storage is not None
        for topic in self.model.values():
            topic.first_max = len(topic.rows)
        self.storage.maintain()
        note_beginnings(self.storage, self.model)
        self._note_durable()

    def _note_durable(self) -> None:
        assert self.storage is not None
        for topic in self.storage.opened_topics():
            self.model[topic.name].durable = topic.stats().durable_end


def settings_for(mode: SyncMode) -> Settings:
    retention = RetentionSettings(bytes=150 * KIB, age_ms=1_000_000)
    return settings_of(mode, retention=retention, file_age_ms=1_000_000)


def sweep(
    mode: SyncMode, seeds: int, verify: Callable[[FaultyDisk, Model, Scenario], None], *, every: int = 1, **shape: int
) -> int:
    """Run the scenario, and `verify` what a power cut before each operation may leave; returns how many were tried."""
    disk = FaultyDisk(**shape)
    scenario = Scenario(disk, settings_for(mode))
    tried = 0

    def look(operation: str, path: Path) -> None:
        nonlocal tried
        if disk.operations % every:
            return
        for seed in range(seeds):
            tried += 1
            rng = random.Random(disk.operations * 1_000 + seed)
            try:
                verify(disk.crash(rng), copied(scenario.model), scenario)
            except Exception as error:
                error.add_note(f"power cut before operation {disk.operations} ({operation} {path}), seed {seed}")
                raise

    disk.watch(look)
    try:
        scenario.run()
        look("end", Path())
    finally:
        disk.watch(None)
        abandon(scenario.storage)
    return tried


def holds_and_goes_on(disk: FaultyDisk, model: Model, scenario: Scenario) -> None:
    storage = opened(disk, scenario.settings, scenario.clock)
    try:
        check_storage(storage, model)
        adopt_storage(storage, model)
        for name in list(model):
            publish_one_more(storage, name, model[name])
        storage.close()
        storage = opened(disk, scenario.settings, scenario.clock)
        check_storage(storage, model)
    finally:
        abandon(storage)


@pytest.mark.parametrize("states", STATES)
@pytest.mark.parametrize("mode", list(SyncMode))
def test_a_power_cut_at_any_operation_loses_nothing_that_was_promised(mode: SyncMode, states: int) -> None:
    assert sweep(mode, states, holds_and_goes_on) > 150 * states


@pytest.mark.parametrize("states", STATES)
def test_a_power_cut_at_any_operation_loses_nothing_on_a_disk_with_pages_of_one_sector(states: int) -> None:
    assert sweep(SyncMode.ALWAYS, states, holds_and_goes_on, page_bytes=512) > 150 * states


def survives_a_second_cut(disk: FaultyDisk, model: Model, scenario: Scenario) -> None:
    """The power goes again at each operation of the recovery itself."""
    images: list[FaultyDisk] = []
    rng = random.Random(disk.operations)

    def look(operation: str, path: Path) -> None:
        images.append(disk.crash(rng))

    disk.watch(look)
    storage = opened(disk, scenario.settings, scenario.clock)
    try:
        check_storage(storage, model)
    finally:
        disk.watch(None)
        abandon(storage)
    for image in images:
        holds_and_goes_on(image, copied(model), scenario)


def test_a_second_power_cut_during_recovery_loses_nothing() -> None:
    assert sweep(SyncMode.ALWAYS, 1, survives_a_second_cut, every=3) > 50


Break = Callable[[FaultyDisk, int], None]


def the_next_process_leaves_no_debt(mode: SyncMode, break_at: Break) -> int:
    """Break the n-th operation, for every n; the next process goes on from what it finds, then the power goes."""
    for number in range(10_000):
        disk = FaultyDisk()
        scenario = Scenario(disk, settings_for(mode))
        break_at(disk, number)
        injected = disk.failures_left
        try:
            scenario.run()
        except (PowerCut, FrazilError, OSError):
            pass
        else:
            if not injected or disk.failures_left:
                return number
        finally:
            abandon(scenario.storage)
        try:
            goes_on_and_survives(disk.kill(), scenario, publish=number % 2 == 1)
        except Exception as error:
            error.add_note(f"broken at operation {number}")
            raise
    raise AssertionError("the scenario has no end")


def goes_on_and_survives(disk: FaultyDisk, scenario: Scenario, *, publish: bool) -> None:
    model = copied(scenario.model)
    for topic in model.values():  # the cache outlives the process: nothing written is lost by a kill
        topic.durable = len(topic.rows)
    storage = opened(disk, scenario.settings, scenario.clock)
    try:
        check_storage(storage, model)
        adopt_storage(storage, model)
        for name in list(model):
            if publish:
                publish_one_more(storage, name, model[name])
            model[name].first_max = len(model[name].rows)
        storage.maintain()
    finally:
        abandon(storage)
    for seed in range(3):
        try:
            holds_and_goes_on(disk.crash(random.Random(seed)), copied(model), scenario)
        except Exception as error:
            error.add_note(f"power cut with seed {seed}")
            raise


@pytest.mark.parametrize(
    "mode",
    [
        SyncMode.ALWAYS,
        pytest.param(SyncMode.PERIODIC, marks=pytest.mark.long),
        pytest.param(SyncMode.NONE, marks=pytest.mark.long),
    ],
)
def test_what_a_process_found_after_a_kill_it_does_not_lose_in_a_power_cut(mode: SyncMode) -> None:
    assert the_next_process_leaves_no_debt(mode, lambda disk, number: disk.cut_power_after(number)) > 200


FAILURES: list[tuple[Operation, int]] = [
    ("sync", errno.EIO),
    ("sync_folder", errno.EIO),
    ("write", errno.EIO),
    ("write", errno.ENOSPC),
    ("truncate", errno.EIO),
    ("rename", errno.EIO),
    ("remove", errno.EIO),
]


@pytest.mark.parametrize(("operation", "error"), FAILURES)
def test_what_a_process_found_after_a_disk_error_it_does_not_lose_in_a_power_cut(
    operation: Operation, error: int
) -> None:
    """A failed sync leaves pages that look clean: whoever finds them must write them again before trusting them."""
    broken = the_next_process_leaves_no_debt(
        SyncMode.ALWAYS, lambda disk, number: disk.fail(operation, error, after=number)
    )
    assert broken > 3
