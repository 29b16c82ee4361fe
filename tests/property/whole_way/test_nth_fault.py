"""Every call of a scenario to the disk, to the catalog, to the files of tables and to the metadata store fails in turn,
once and for ever, before and after its effect. After each step, and when the fault is over, the oracle of the whole way
is asked; then everything goes on.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from actors import Client
from nth_fault import PARTS, CountedDisk, NthFault, Part, count_catalog, counted_classes
from subscribers import Subscribers
from world import KIB, World

from frazil import FrazilError, RetentionSettings

ONE, TWO = "/a/one", "/a/two"
UNTIL_ACKED = RetentionSettings(bytes=1, until_acked=True)
MODES = list(itertools.product([False, True], [False, True]))
QUICK_SAMPLES = 1
"""Of each part and mode in a quick run; the long run takes every call."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Scenario:
    """Two topics' life in a few steps: published, subscribed, rotated, moved, acknowledged, retained, deleted, made
    again, repaired."""

    def __init__(self, folder: Path, fault: NthFault) -> None:
        self.world = World(folder)
        self.world.tick(0)
        self.world.disk = CountedDisk(self.world.disk, fault)  # type: ignore[assignment]
        self.world.lake.quiet = fault.paused
        self.subscribers = Subscribers(self.world)
        self.fault = fault
        for process in self.world.movers:
            process.catalog.commit_table = process.commit
            count_catalog(process.catalog, fault)
            process.commit = process.catalog.commit_table

    def run(self) -> None:
        world, client, subscribers = self.world, Client("p", ONE), self.subscribers
        steps: list[Callable[[], object]] = [
            world.restart,
            lambda: world.publish(ONE, 3, 9 * KIB),
            lambda: subscribers.subscribe(ONE),
            lambda: world.send(client, 2, 9 * KIB, answer_is_lost=True),
            lambda: world.publish(TWO, 2, 900),
            lambda: subscribers.subscribe(TWO),
            lambda: world.tick(0),
            lambda: world.publish(ONE, 2, 30 * KIB),  # begins another segment
            lambda: world.send_again(client),
            lambda: world.tick(1),
            lambda: world.retain(ONE, UNTIL_ACKED),
            lambda: subscribers.consume(ONE, 2),  # all of the first segment that the subscription gets
            lambda: world.retain(ONE, UNTIL_ACKED),
            world.restart,
            lambda: world.publish(ONE, 1, 900),
            lambda: world.delete_topic(TWO),
            lambda: world.lake.drop(TWO),  # as the mover asks for, before it moves another topic of that name
            lambda: world.publish(TWO, 1, 900),
            lambda: world.tick(0),
            lambda: world.mend_log(ONE),
            lambda: world.publish(ONE, 1, 900),
        ]
        for step in steps:
            self._try(step)
            if self.fault.failed:  # until then all is as without a fault
                self._check()

    def _try(self, step: Callable[[], object]) -> None:
        """What a step may raise: errors of ours, and of the disk where a folder is opened."""
        try:
            if self.world.storage is None:
                self.world.open()
            step()
        except (FrazilError, OSError):
            self.world.settle_deletions()
            if self.world.storage is None or any(topic.log.failed for topic in self.world.storage.opened_topics()):
                self._restart()

    def _check(self) -> None:
        """What can be seen between two steps. A folder that can't be opened is asked in the end."""
        with self.fault.paused():
            if self.world.storage is not None:
                self.world.settle_deletions()  # the disk answers again
                for name in self.world.logs:
                    self.world.check(name)
                    self.subscribers.check_kept(name)

    def _restart(self) -> None:
        try:
            self.world.kill()
        except (FrazilError, OSError):
            self.world.abandon()

    def ask(self) -> None:
        """The fault is over: everything opens, is moved, and is as promised."""
        world = self.world
        self.fault.lift()
        world.abandon()
        world.disk = world.disk.kill()
        world.open()
        world.settle_deletions()
        world.tick(0)
        world.tick(1)
        for name in list(world.logs):
            world.publish(name, 1, 100)
            world.look(name)
            self.subscribers.look(name)


def run(folder: Path, fault: NthFault) -> int:
    """One run of the scenario; returns how many calls it made."""
    scenario = Scenario(folder, fault)
    try:
        with counted_classes(fault):
            scenario.run()
            scenario.ask()
    except Exception as error:
        error.add_note(f"the fault: {fault}")
        raise
    finally:
        scenario.world.finish()
    return fault.count


@pytest.mark.parametrize("part", PARTS)
def test_a_fault_of_any_part_breaks_no_promise(tmp_path: Path, part: Part) -> None:
    """A few calls of each part; which ones is drawn anew with each seed of the test run."""
    total = run(tmp_path / "all", NthFault(part))
    assert total > 10
    for number, (after_effect, for_ever) in enumerate(MODES * QUICK_SAMPLES):
        run(tmp_path / str(number), NthFault(part, random.randrange(total), after_effect, for_ever))


@pytest.mark.long
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize(("after_effect", "for_ever"), MODES)
@pytest.mark.parametrize("part", PARTS)
def test_each_single_call_may_fail(tmp_path: Path, part: Part, after_effect: bool, for_ever: bool) -> None:
    total = run(tmp_path / "all", NthFault(part))
    for at in range(total):
        run(tmp_path / str(at), NthFault(part, at, after_effect, for_ever))
