"""The whole way of a row, from producers over the log and the movers to tables and readers, against one oracle.

Whatever happens in whatever order, what was acknowledged is readable once, at its offset, unchanged and in order,
through every face; what was refused is nowhere; what is unknown is there at most once; and `verify` says proven if
and only if that is so. Where the test itself took rows away, faces refuse and `verify` does not prove.

The long run takes an hour, or `FRAZIL_MODEL_MINUTES`, with other examples each time; `FRAZIL_MODEL_SEED` repeats one.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from actors import Client, Killed
from hypothesis import HealthCheck, Phase, seed, settings, stateful
from hypothesis import strategies as st
from mirrored_disk import ignore_power_cuts
from pyiceberg.exceptions import CommitFailedException, ServiceUnavailableError
from world import KIB, World

from frazil import RetentionSettings, SyncMode

NAMES = ["/a/one", "/a/two"]
RETENTIONS = [
    RetentionSettings(bytes=1), RetentionSettings(age_ms=1), RetentionSettings(bytes=100 * KIB, age_ms=60_000),
]  # fmt: skip

names = st.sampled_from(NAMES)
counts = st.integers(1, 4)
sizes = st.sampled_from([0, 900, 9 * KIB, 30 * KIB])
seeds = st.integers(0, 2**16)
moments = st.integers(0, 12)
clients = st.integers(0, 2)
movers = st.integers(0, 1)


def _killed_before(commit: Callable[[], Any]) -> Any:
    raise Killed


def _killed_after(commit: Callable[[], Any]) -> Any:
    commit()
    raise Killed


def _answer_lost(commit: Callable[[], Any]) -> Any:
    commit()
    raise ServiceUnavailableError("the answer is lost")


def _never_arrived(commit: Callable[[], Any]) -> Any:
    raise ServiceUnavailableError("it never arrived")


def _refused(commit: Callable[[], Any]) -> Any:
    raise CommitFailedException("somebody was quicker")


class _Once:
    """A fault of the first commit; those after it go through."""

    def __init__(self, fault: Callable[[Callable[[], Any]], Any]) -> None:
        self._fault: Callable[[Callable[[], Any]], Any] | None = fault

    def __call__(self, commit: Callable[[], Any]) -> Any:
        fault, self._fault = self._fault, None
        return commit() if fault is None else fault(commit)


FAULTS = [_killed_before, _killed_after, _answer_lost, _never_arrived, _refused]


class WholeWayMachine(stateful.RuleBasedStateMachine):
    mode = SyncMode.ALWAYS

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="frazil-whole-way-"))
        self.undo = ignore_power_cuts()
        logging.disable(logging.CRITICAL)  # faults are what this is for: their messages would be all that is seen
        self.world = World(self.folder, self.mode)
        self.clients = [Client("p", NAMES[0]), Client("p", NAMES[0]), Client("q", NAMES[0])]
        self.backup: Path | None = None

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:  # else a rule has failed, and that is what is to be told
                for name in list(self.world.logs):
                    self.world.look(name)
        finally:
            self.world.finish()
            self.undo()
            logging.disable(logging.NOTSET)
            shutil.rmtree(self.folder, ignore_errors=True)

    # --- producers

    @stateful.rule(name=names, count=counts, size=sizes)
    def publish(self, name: str, count: int, size: int) -> None:
        self.world.attempt(lambda: self.world.publish(name, count, size))

    @stateful.rule(name=names, count=counts, size=sizes, operations=moments, seed=seeds)
    def publish_and_the_power_goes(self, name: str, count: int, size: int, operations: int, seed: int) -> None:
        self.world.disk.faults.cut_power_after(operations)
        self.world.attempt(lambda: self.world.publish(name, count, size), seed)
        self.world.disk.faults.cut_power_after(None)

    @stateful.rule(name=names, count=counts, error=st.sampled_from([errno.EIO, errno.ENOSPC]), after=st.integers(0, 3))
    def publish_and_the_disk_fails(self, name: str, count: int, error: int, after: int) -> None:
        for operation in ("write", "sync") if error == errno.EIO else ("write",):
            self.world.disk.faults.fail(operation, error, after=after)  # type: ignore[arg-type]
        self.world.attempt(lambda: self.world.publish(name, count, 9 * KIB))
        self.world.disk.faults.mend()

    @stateful.rule(client=clients)
    def take_a_name(self, client: int) -> None:
        self.world.attempt(lambda: self.world.take_name(self.clients[client]))

    @stateful.rule(client=clients, count=counts, size=sizes, lost=st.booleans())
    def send(self, client: int, count: int, size: int, lost: bool) -> None:
        self.world.attempt(lambda: self.world.send(self.clients[client], count, size, answer_is_lost=lost))

    @stateful.rule(client=clients, count=counts, operations=moments, seed=seeds)
    def send_and_the_power_goes(self, client: int, count: int, operations: int, seed: int) -> None:
        self.world.disk.faults.cut_power_after(operations)
        self.world.attempt(lambda: self.world.send(self.clients[client], count, 900, answer_is_lost=False), seed)
        self.world.disk.faults.cut_power_after(None)

    @stateful.rule(client=clients)
    def send_again(self, client: int) -> None:
        self.world.attempt(lambda: self.world.send_again(self.clients[client]))

    @stateful.rule(client=clients)
    def come_back(self, client: int) -> None:
        self.world.attempt(lambda: self.world.come_back(self.clients[client]))

    # --- the owner

    @stateful.rule(moves=st.booleans())
    def restart(self, moves: bool) -> None:
        self.world.restart(moves=moves)

    @stateful.rule()
    def the_owner_is_killed(self) -> None:
        self.world.kill()

    @stateful.rule(seed=seeds)
    def the_power_goes(self, seed: int) -> None:
        self.world.cut_power(seed)

    @stateful.rule(seconds=st.sampled_from([-4_000, -1, 1, 61, 4_000]))
    def the_clock_jumps(self, seconds: int) -> None:
        self.world.clock.step_wall(seconds * 1_000_000)

    @stateful.rule(name=names, which=st.sampled_from(RETENTIONS))
    def retain(self, name: str, which: RetentionSettings) -> None:
        self.world.attempt(lambda: self.world.retain(name, which))

    @stateful.rule(name=names, which=st.sampled_from(RETENTIONS), operations=moments, seed=seeds)
    def retain_and_the_power_goes(self, name: str, which: RetentionSettings, operations: int, seed: int) -> None:
        self.world.disk.faults.cut_power_after(operations)
        self.world.attempt(lambda: self.world.retain(name, which), seed)
        self.world.disk.faults.cut_power_after(None)

    @stateful.rule(name=names)
    def delete(self, name: str) -> None:
        self.world.attempt(lambda: self.world.delete_topic(name))

    # --- movers

    @stateful.rule(which=movers)
    def move(self, which: int) -> None:
        if self.world.tick(which, careful=True):  # it sees at one tick that a table was dropped, and moves at the next
            self.world.tick(which, careful=True)

    @stateful.rule(which=movers, fault=st.sampled_from(FAULTS))
    def move_with_a_fault(self, which: int, fault: Callable[[Callable[[], Any]], Any]) -> None:
        self.world.tick(which, _Once(fault))

    @stateful.rule(which=movers, name=names, seed=seeds)
    def move_and_meanwhile_compact(self, which: int, name: str, seed: int) -> None:
        self.world.tick(which, meanwhile=lambda: self._compact(name, seed, 2))

    @stateful.rule(which=movers)
    def move_and_meanwhile_another_moves(self, which: int) -> None:
        self.world.tick(which, meanwhile=lambda: self._ignored(self.world.tick(1 - which)))

    @stateful.rule(which=movers, name=names)
    def move_and_meanwhile_retain(self, which: int, name: str) -> None:
        self.world.tick(which, meanwhile=lambda: self.world.retain(name, RETENTIONS[0]))

    # --- other engines, and people

    @stateful.rule(name=names, seed=seeds, cuts=st.integers(0, 3))
    def compact(self, name: str, seed: int, cuts: int) -> None:
        self._compact(name, seed, cuts)

    def _compact(self, name: str, seed: int, cuts: int) -> None:
        try:
            self.world.lake.compact(name, seed, cuts)
        except FileNotFoundError:  # a catalog restored from a copy names files that were expired since
            if name not in self.world.restored:
                raise

    @stateful.rule(name=names, kept=st.integers(1, 2), files=st.booleans())
    def expire(self, name: str, kept: int, files: bool) -> None:
        self.world.lake.expire(name, kept)
        if files:
            self.world.lake.remove_unneeded_files(name)

    @stateful.rule(name=names, steps=st.integers(1, 3))
    def roll_back(self, name: str, steps: int) -> None:
        self.world.destroy(name, "rolled back", lambda: self.world.lake.roll_back(name, steps))

    @stateful.rule(name=names, seed=seeds)
    def damage_and_repair(self, name: str, seed: int) -> None:
        if name in self.world.logs:
            self.world.damage_and_repair(name, seed)

    @stateful.rule(name=names)
    def renumber(self, name: str) -> None:
        if name in self.world.logs:
            self.world.renumber(name)

    @stateful.rule(name=names, seed=seeds, new=st.integers(0, 3), operations=st.none() | st.integers(0, 80))
    def go_back_and_renumber(self, name: str, seed: int, new: int, operations: int | None) -> None:
        """Rows are moved, the log is cut, and has new ones; then it is renumbered, and the power may go."""
        self.world.attempt(lambda: self.world.publish(name, 3, 900))
        self.world.tick(0)
        self.world.damage_and_repair(name, seed)
        for _ in range(new):
            self.world.attempt(lambda: self.world.publish(name, 2, 9 * KIB))
        self.world.disk.faults.cut_power_after(operations)
        self.world.attempt(lambda: self.world.renumber(name), seed)
        self.world.disk.faults.cut_power_after(None)
        self.world.settle_renumbering(name)

    # --- the oracle

    @stateful.rule(name=names)
    def look(self, name: str) -> None:
        if name in self.world.logs:
            self.world.look(name)

    @stateful.invariant()
    def nothing_is_lost_doubled_or_changed(self) -> None:
        for name in self.world.logs:
            self.world.check(name)

    def _ignored(self, _: object) -> None:
        """For what is done on the way."""


class HarmedMachine(WholeWayMachine):
    """The same where people also drop tables, restore catalogs from copies, and accept what is missing."""

    @stateful.rule(name=names)
    def drop_table(self, name: str) -> None:
        self.world.destroy(name, "dropped", lambda: self.world.lake.drop(name))

    @stateful.rule(name=names, start=st.integers(0, 5), count=st.integers(1, 30))
    def delete_rows(self, name: str, start: int, count: int) -> None:
        if name in self.world.logs:
            self.world.delete_rows(name, start, start + count)

    @stateful.rule()
    def back_up_the_catalog(self) -> None:
        self.backup = self.folder / "backup.db"
        self.world.lake.back_up(self.backup)

    @stateful.rule()
    def restore_the_catalog(self) -> None:
        if self.backup is not None:
            backup = self.backup
            self.world.destroy(None, "restored", lambda: self.world.lake.restore(backup))

    @stateful.rule(name=names)
    def accept(self, name: str) -> None:
        if name in self.world.logs:
            self.world.accept(name)


MINUTES = float(os.environ.get("FRAZIL_MODEL_MINUTES", "60"))


@pytest.mark.timeout(3_600)
class TestWholeWay(WholeWayMachine.TestCase):
    settings = settings(max_examples=max(8, settings().max_examples // 20), stateful_step_count=25)


@pytest.mark.timeout(3_600)
class TestHarmed(HarmedMachine.TestCase):
    settings = settings(max_examples=max(4, settings().max_examples // 25), stateful_step_count=25)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_the_whole_way_for_minutes() -> None:
    ends = time.monotonic() + MINUTES * 60
    number = int(os.environ.get("FRAZIL_MODEL_SEED", time.monotonic_ns() % 2**32))
    while time.monotonic() < ends:
        number += 1
        print(f"FRAZIL_MODEL_SEED={number - 1}", flush=True)
        run = settings(
            max_examples=50, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink], database=None,
        )  # fmt: skip
        machine = HarmedMachine if number % 2 else WholeWayMachine
        stateful.run_state_machine_as_test(seed(number)(machine), settings=run)
