"""Several clients of one producer's name against a model, whatever is lost, cut, forgotten or restarted on the way.

What was acknowledged is readable once, at its offset, unchanged; what was refused is nowhere; what is unknown is there
at most once and whole; nobody takes a name back by itself, and a fenced client stays fenced until its user opens it.
"""

from __future__ import annotations

from typing import Any

import pytest
from harness import read_rows
from hypothesis import settings, stateful
from hypothesis import strategies as st
from producers_wire import OPEN_FAULTS, WRITE_FAULTS, Client, LogStream, Owner, Published

from frazil import OutcomeUnknown, OwnerUnreachable, ProducerFenced, Sent
from frazil.client import sender
from frazil.log.write import producers

TILL = "till 7"
CLIENTS = [0, 1, 2]
REMEMBERED = 3

clients = st.sampled_from(CLIENTS)
counts = st.lists(st.integers(1, 3), min_size=1, max_size=3)
holds = st.sampled_from(["", "at once", "after a fault"])
open_faults = st.lists(st.sampled_from(["", *OPEN_FAULTS]), max_size=2)
seeds = st.integers(0, 2**16)
write_faults = st.lists(st.tuples(st.sampled_from(["", *WRITE_FAULTS]), seeds), max_size=3)


class ProducersMachine(stateful.RuleBasedStateMachine):
    @stateful.initialize(page_bytes=st.sampled_from([512, 4096]))
    def begin(self, page_bytes: int) -> None:
        self.owner = Owner(page_bytes)
        self.clients = [self._new_client(which) for which in CLIENTS]
        self.published: list[Published] = []
        self.count = 0

    def teardown(self) -> None:
        if hasattr(self, "owner"):
            for client in self.clients:
                client.end()
            self.check()
            self.owner.end()

    def _new_client(self, which: int) -> Client:
        """Two use the name that their user chose, and one has a name of its own."""
        if which < 2:
            return Client(self.owner, TILL, shared=True)
        return Client(self.owner, "client-1", shared=False)

    # --- what users do

    @stateful.rule(which=clients, counts=counts, hold=holds, opens=open_faults, writes=write_faults)
    def publish(
        self, which: int, counts: list[int], hold: str, opens: list[str], writes: list[tuple[str, int]]
    ) -> None:
        """With `hold`, it can't connect until it is let go."""
        client = self.clients[which]
        if client.held:
            return
        client.wire.open_faults.extend(opens)
        client.wire.write_faults.extend(writes)
        if hold == "at once":
            client.wire.gate.clear()
        client.wire.holds_after_fault = hold == "after a fault"
        begun = [client.begin(self._payloads(count)) for count in counts]
        self.published += begun
        client.wait()
        if not client.pending:
            client.wire.let_go()
        self._ended(client, begun)

    @stateful.rule(
        which=clients,
        counts=counts,
        good=st.integers(0, 2),
        fault=st.tuples(st.sampled_from(WRITE_FAULTS), seeds),
        opens=open_faults,
        meanwhile=st.lists(st.sampled_from(["other", "owner", "forget", "power"]), max_size=3),
    )
    def cut_off(
        self, which: int, counts: list[int], good: int, fault: tuple[str, int], opens: list[str], meanwhile: list[str]
    ) -> None:
        """With batches in flight; and it comes back after this or that has happened."""
        self.publish(which, counts, "after a fault", [], [*[("", 0)] * good, fault])
        for event in meanwhile:
            if event == "other":
                self.publish((which + 1) % 2, [1], "", [], [])
            elif event == "owner":
                self.publish_at_the_owner(1)
            elif event == "forget":
                self.forget(REMEMBERED + 1)
            else:
                self.power_cut(fault[1])
        self.clients[which].wire.open_faults.extend(opens)
        self.let_go(which)

    @stateful.rule(which=clients)
    def let_go(self, which: int) -> None:
        client = self.clients[which]
        if client.held:
            pending = list(client.pending)
            client.wire.let_go()
            client.wait()
            self._ended(client, pending)

    @stateful.rule(which=clients)
    def open_producer(self, which: int) -> None:
        if not self.clients[which].held:
            self.clients[which].open_producer()

    @stateful.rule(which=clients)
    def start_anew(self, which: int) -> None:
        """The program ends, and another one of the same name begins."""
        if not self.clients[which].held:
            self.clients[which].end()
            self.clients[which] = self._new_client(which)

    @stateful.rule(count=st.integers(1, 3))
    def publish_at_the_owner(self, count: int) -> None:
        """Who has the folder may take the name too."""
        with self.owner.guard:
            topic = self.owner.topic
            state = topic.open_producer(TILL)
            self.owner.holders[TILL] = "the owner"
            published = Published(self._payloads(count))
            published.first_offset = topic.publish_many(
                published.payloads, sent=Sent(TILL, state.epoch, state.next_sequence)
            ).start
            published.done.set()
        self.published.append(published)

    # --- what happens to the owner

    @stateful.rule(seed=st.integers(0, 2**32 - 1))
    def power_cut(self, seed: int) -> None:
        self.owner.restart(seed)

    @stateful.rule(others=st.integers(1, REMEMBERED + 1))
    def forget(self, others: int) -> None:
        with self.owner.guard:
            for _ in range(others):
                self.count += 1
                self.owner.topic.open_producer(f"other {self.count}")

    # --- what must hold

    def _payloads(self, count: int) -> list[bytes]:
        self.count += count
        return [b"row %d" % number for number in range(self.count - count, self.count)]

    def _ended(self, client: Client, begun: list[Published]) -> None:
        if not client.held:
            client.wire.open_faults.clear()
            client.wire.write_faults.clear()
        for published in begun:
            if not published.done.is_set():
                continue
            if client.fenced:
                assert isinstance(published.error, ProducerFenced | OutcomeUnknown), "a fenced client published"
            if isinstance(published.error, ProducerFenced):
                client.fenced = True
            else:
                told = published.error is None or isinstance(published.error, OutcomeUnknown | OwnerUnreachable)
                assert told, published.error

    @stateful.invariant()
    def check(self) -> None:
        if not hasattr(self, "owner"):
            return
        with self.owner.guard:
            assert not self.owner.violations, self.owner.violations
            _, found = read_rows(self.owner.topic)
        rows = [value for _, _, value in found]
        assert len(set(rows)) == len(rows), "a row is there twice"
        at = {value: offset for offset, _, value in found}
        for published in self.published:
            places = [at.pop(payload, -1) for payload in published.payloads]
            whole = list(range(places[0], places[0] + len(places)))
            nowhere = [-1] * len(places)
            if not published.done.is_set() or isinstance(published.error, OutcomeUnknown):
                assert places in (whole, nowhere), "a batch is there in part"
            elif published.error is not None:
                assert places == nowhere, f"refused, and there: {published.error}"
            else:
                assert places[0] == published.first_offset, "the offset of another row"
                assert places == whole, "acknowledged, and not there"
        assert not at, "rows that nobody published"


Step = tuple[Any, ...]
PUBLISH_0: Step = ("publish", 0, [1], "", [], [])
LOST_AFTER, LOST_BEFORE, LATE = ("lost after", 1), ("lost before", 1), ("late", 1)

SCRIPTS: dict[str, tuple[list[Step], str]] = {
    "an answer is lost": ([("cut_off", 0, [1], 0, LOST_AFTER, [], [])], "acked acked"),
    "a batch is lost": ([("cut_off", 0, [1, 2], 1, LOST_BEFORE, [], [])], "acked acked acked"),
    "a batch comes late": ([("cut_off", 0, [2], 0, LATE, [], [])], "acked acked"),
    "and the owner restarts": ([("cut_off", 0, [1], 0, LOST_AFTER, [], ["power"])], "acked acked"),
    "and the owner forgets the producer": ([("cut_off", 0, [1], 0, LOST_AFTER, [], ["forget"])], "acked unknown"),
    "and it was the first one": ([("cut_off", 2, [1], 0, LOST_AFTER, [], ["forget"])], "acked unknown"),
    "and forgets it and restarts": ([("cut_off", 0, [1], 0, LOST_AFTER, [], ["forget", "power"])], "acked unknown"),
    "and another client takes the name": (
        [("cut_off", 0, [1], 0, LOST_AFTER, [], ["other"]), PUBLISH_0, ("open_producer", 0), PUBLISH_0],
        "acked unknown acked fenced acked",
    ),
    "and another client stores a batch of the same number": (
        [("cut_off", 0, [1], 0, LOST_BEFORE, [], ["other"])],
        "acked unknown acked",
    ),
    "and the owner itself takes the name": (
        [("cut_off", 0, [1], 0, LOST_AFTER, [], ["owner"]), PUBLISH_0],
        "acked unknown acked fenced",
    ),
    "and the client gives up": (
        [("cut_off", 0, [1], 0, LOST_AFTER, ["give up"], []), PUBLISH_0],
        "acked unknown acked",
    ),
    "the producer is forgotten between two batches": ([("forget", REMEMBERED + 1), PUBLISH_0], "acked acked"),
    "a fenced client has more to send": (
        [("publish", 1, [1], "", [], []), ("publish", 0, [1, 1, 2], "", [], []), PUBLISH_0],
        "acked acked fenced fenced fenced fenced",
    ),
    "the answer to an open is lost and another takes the name": (
        [
            ("start_anew", 0), ("publish", 0, [1], "after a fault", ["lost after"], []),
            ("publish", 1, [1], "", [], []), ("let_go", 0),
        ],
        "acked fenced acked",
    ),
    "a name is taken without a row before a restart": (
        [("publish", 1, [1], "after a fault", [], [LOST_BEFORE]), ("power_cut", 1), PUBLISH_0, ("let_go", 1)],
        "acked acked fenced",
    ),
}  # fmt: skip


def play(steps: list[Step]) -> list[Published]:
    """The first client publishes one row; then each step is a call of a rule."""
    machine = ProducersMachine()
    machine.begin(4096)
    try:
        for name, *words in [PUBLISH_0, *steps]:
            getattr(machine, name)(*words)
            machine.check()
    finally:
        machine.teardown()
    return machine.published


def _outcome(published: Published) -> str:
    if published.error is None:
        return "acked"
    return {OutcomeUnknown: "unknown", ProducerFenced: "fenced"}[type(published.error)]


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_caller_is_told_what_happened(name: str) -> None:
    """Short histories, and exactly what each call of a user came to."""
    steps, outcomes = SCRIPTS[name]
    assert " ".join(map(_outcome, play(steps))) == outcomes


@pytest.fixture(autouse=True)
def _without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "PutStream", LogStream)
    monkeypatch.setattr(sender, "delay_seconds", lambda attempt: 0.0)
    monkeypatch.setattr(producers, "PRODUCERS_MAX", REMEMBERED)


def run(**limits: Any) -> None:
    stateful.run_state_machine_as_test(ProducersMachine, settings=settings(deadline=None, **limits))


def test_clients_of_one_name() -> None:
    run(max_examples=30, stateful_step_count=20)


@pytest.mark.long
@pytest.mark.timeout(3_000)
def test_clients_of_one_name_for_long() -> None:
    run(max_examples=5_000, stateful_step_count=50)
