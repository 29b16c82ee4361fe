"""Several brokers that are paused, killed, cut off and restarted while topics move.

At every moment a topic is served by at most one broker in one epoch, epochs only grow, and a topic whose rows are on a
disk changes its owner only after an upload, or with its loss accepted. When all is well again, every topic is served,
and has every row that was acknowledged, once and in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from owning_brokers import LEASE_MS, Broker, Local, World
from virtual_time import VirtualLoop

from frazil.core.errors import FrazilError
from frazil.core.names import TopicName

NAMES = ("a", "b", "c")
TOPICS = [TopicName("default", f"t{number}") for number in range(4)]
names, topics, acks = st.sampled_from(NAMES), st.sampled_from(TOPICS), st.sampled_from([None, "object"])


class Ownership(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.loop = VirtualLoop()
        asyncio.set_event_loop(self.loop)
        self.world = World(self.folder, self.loop)
        self.disks: dict[str, dict[TopicName, Local]] = {name: {} for name in NAMES}
        self.all: list[Broker] = []
        self.calls: list[asyncio.Task[object]] = []

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def later(self, work: Coroutine[Any, Any, Any]) -> None:
        """Make a call of an operator, which may take long and fail."""

        async def tried() -> None:
            with contextlib.suppress(FrazilError):
                await work

        self.calls.append(self.loop.create_task(tried()))

    def broker(self, name: str) -> Broker:
        return self.world.brokers[name]

    @initialize(far=st.booleans(), acks=st.lists(acks, min_size=3, max_size=3), owners=st.lists(names, min_size=3))
    def begin(self, far: bool, acks: list[str | None], owners: list[str]) -> None:
        for name in NAMES:
            self.launch(name, far=far)
        for topic, ack, owner in zip(TOPICS, acks, owners, strict=False):
            self.create(owner, topic, ack)
        self.do(asyncio.sleep(LEASE_MS / 1_000 + 2))

    def launch(self, name: str, *, far: bool) -> None:
        broker = Broker(self.world, name, self.disks[name], far=far)
        self.all.append(broker)
        self.do(broker.start())

    # --- clients

    @rule(name=names, topic=topics, ack=acks)
    def create(self, name: str, topic: TopicName, ack: str | None) -> None:
        if not self.broker(name).is_dead and not self.broker(name).gate.is_paused:
            self.later(self.broker(name).create(topic, ack))
            self.do(asyncio.sleep(0.05))

    @rule(name=names, topic=topics)
    def delete(self, name: str, topic: TopicName) -> None:
        broker = self.broker(name)
        if not broker.is_dead and broker.ownership is not None:
            self.later(broker.delete(topic))
            self.do(asyncio.sleep(0.002))

    @rule(times=st.sampled_from([1, 5, 30]))
    def publish(self, times: int) -> None:
        """To each broker that takes it: a client with an old address is one."""
        for _ in range(times):
            for name in NAMES:
                broker = self.broker(name)
                for topic in TOPICS if not broker.is_dead and not broker.gate.is_paused else []:
                    with contextlib.suppress(FrazilError):
                        broker.publish(topic)
            self.do(asyncio.sleep(0.002))

    @rule(milliseconds=st.sampled_from([1, 3, 20, 300, 2_000, 8_000]))
    def wait(self, milliseconds: int) -> None:
        self.do(asyncio.sleep(milliseconds / 1_000))

    # --- operators

    @rule(name=names, topic=topics, to=st.none() | names, accept_loss=st.booleans())
    def move(self, name: str, topic: TopicName, to: str | None, accept_loss: bool) -> None:
        broker = self.broker(name)
        if not broker.is_dead and broker.ownership is not None:
            if accept_loss:
                self.world.loss_accepted.add(topic)
            self.later(broker.ownership.move(topic, to, accept_loss=accept_loss))

    @rule(name=names, which=names, parallel_max=st.integers(1, 3))
    def drain(self, name: str, which: str, parallel_max: int) -> None:
        broker = self.broker(name)
        if not broker.is_dead and broker.ownership is not None:
            self.later(broker.ownership.drain(which, timeout_ms=20_000, parallel_max=parallel_max))

    @rule(name=names, which=names)
    def activate(self, name: str, which: str) -> None:
        broker = self.broker(name)
        if not broker.is_dead and broker.ownership is not None:
            self.later(broker.ownership.activate(which))

    # --- faults

    @rule(name=names)
    def pause_or_wake(self, name: str) -> None:
        gate = self.broker(name).gate
        if gate.is_paused:
            gate.wake()
        else:
            gate.pause()

    @rule(name=names)
    def kill_or_restart(self, name: str) -> None:
        broker = self.broker(name)
        if not broker.is_dead:
            self.do(broker.kill())
            return
        if broker.far:
            self.do(asyncio.sleep(LEASE_MS / 1_000 + 1))
        self.launch(name, far=broker.far)

    @precondition(lambda self: sum(not one.is_dead for one in self.world.brokers.values()) > 1)
    @rule(name=names)
    def stop(self, name: str) -> None:
        broker = self.broker(name)
        if not broker.is_dead and not broker.gate.is_paused and not broker.meta.is_away:
            self.do(broker.stop())

    @rule(name=names)
    def cut_off_or_not(self, name: str) -> None:
        if not self.broker(name).is_dead:
            self.broker(name).meta.is_away = not self.broker(name).meta.is_away

    @rule(name=names, loses=st.lists(st.sampled_from(["call", "answer", "none"]), max_size=4))
    def lose(self, name: str, loses: list[str]) -> None:
        self.broker(name).meta.loses = loses

    @rule(name=names)
    def lose_owner_change(self, name: str) -> None:
        self.broker(name).meta.loses_owner_change = True

    @rule()
    def objects_away_or_not(self) -> None:
        self.world.store_is_away = not self.world.store_is_away

    @invariant()
    def holds(self) -> None:
        self.world.audit()
        assert not self.world.violations

    # --- in the end

    def teardown(self) -> None:
        try:
            self.all_is_well()
            self.do(asyncio.sleep(60))
            self.holds()
            self.check()
        finally:
            self.end()

    def all_is_well(self) -> None:
        self.world.store_is_away = False
        for name in NAMES:
            broker = self.world.brokers.get(name)
            if broker is None:
                continue
            broker.gate.wake()
            if not broker.is_dead:
                broker.meta.is_away = False
            else:
                self.kill_or_restart(name)
            self.broker(name).meta.loses = []
            self.broker(name).meta.loses_owner_change = False

    def check(self) -> None:
        for topic, (epoch, owner) in self.world.epochs.items():
            assert owner is not None
            broker = self.broker(owner)
            assert broker.lost is None
            assert broker.served().get(topic) == epoch, f"{topic} is not served: {self.told(broker, topic)}"
            others = [one.name for one in self.world.brokers.values() if one is not broker and topic in one.served()]
            assert not others, f"{topic} of {owner} is served by {others} too"
            rows = broker.host.disk[topic].rows
            if topic not in self.world.loss_accepted:
                missing = [row for row in self.world.acked.get(topic, []) if row not in rows]
                assert not missing, f"{topic} lost {missing}"
            assert len(set(rows)) == len(rows)
            assert rows == sorted(rows)
            for one in self.world.brokers.values():
                assert one.ownership is not None
                info = one.ownership.owner_of(topic)
                assert info is not None
                assert info.broker_id == owner, f"{one.name} sees {topic} at {info.broker_id}, and it is at {owner}"

    @staticmethod
    def told(broker: Broker, topic: TopicName) -> object:
        assert broker.ownership is not None
        return broker.ownership.problems().get(topic), broker.ownership._view.topic(topic)

    def end(self) -> None:
        for call in self.calls:
            call.cancel()
        for broker in self.all:
            if not broker.is_dead:
                self.do(broker.kill())
        self.do(asyncio.sleep(0))
        for broker in self.all:
            broker.meta.close()
        self.loop.close()
        asyncio.set_event_loop(None)
        shutil.rmtree(self.folder)


TestOwnership = Ownership.TestCase
TestOwnership.settings = settings(max_examples=15, stateful_step_count=40)
