"""The lease: one mover leads at a time, by a clock that cannot be set, and the lead is never lost for good."""

from __future__ import annotations

import os
import threading

import pytest

from frazil.core.errors import AnotherLeads, NobodyLeads, OwnerUnreachable, Unauthenticated
from frazil.node.movers.lease import Lead, Leases, MoverName, this_host
from frazil.pipeline.move.leading import Leadership
from frazil.testing import FakeClock

ONE = MoverName("one", "host-1", 11)
TWO = MoverName("two", "host-2", 22)
LEASE_MS = 10_000


def test_the_first_that_asks_leads_and_the_second_learns_who_does() -> None:
    leases = Leases(FakeClock())
    assert leases.leader() is None
    assert leases.ask(ONE, LEASE_MS) == Lead(ONE, LEASE_MS)
    assert leases.ask(TWO, LEASE_MS) == Lead(ONE, LEASE_MS)
    assert leases.leader() == ONE


def test_a_leader_that_asks_again_keeps_the_lead_and_one_that_does_not_loses_it() -> None:
    clock = FakeClock()
    leases = Leases(clock)
    leases.ask(ONE, LEASE_MS)
    for _ in range(5):
        clock.advance(9_999_000)
        assert leases.ask(ONE, LEASE_MS).leader == ONE
    clock.advance(9_999_000)
    assert leases.ask(TWO, LEASE_MS) == Lead(ONE, 1)
    clock.advance(1_000)
    assert leases.ask(TWO, LEASE_MS).leader == TWO
    assert leases.ask(ONE, LEASE_MS).leader == TWO


def test_a_wall_clock_that_is_set_changes_nothing() -> None:
    clock = FakeClock()
    leases = Leases(clock)
    leases.ask(ONE, LEASE_MS)
    clock.step_wall(3_600_000_000)
    assert leases.ask(TWO, LEASE_MS).leader == ONE
    clock.step_wall(-7_200_000_000)
    clock.advance(LEASE_MS * 1_000)
    assert leases.ask(TWO, LEASE_MS).leader == TWO


def test_only_the_leader_can_give_up_the_lead() -> None:
    leases = Leases(FakeClock())
    leases.ask(ONE, LEASE_MS)
    leases.give_up(TWO.id)
    assert leases.leader() == ONE
    leases.give_up(ONE.id)
    assert leases.ask(TWO, LEASE_MS).leader == TWO


def test_a_leader_of_this_host_whose_process_is_gone_need_not_be_waited_for() -> None:
    ours = MoverName("three", this_host(), 2**22 + 1)  # above the largest pid there is
    leases = Leases(FakeClock())
    leases.ask(ours, LEASE_MS)
    assert leases.ask(TWO, LEASE_MS).leader == TWO
    alive = MoverName("four", this_host(), os.getpid())
    leases = Leases(FakeClock())
    leases.ask(alive, LEASE_MS)
    assert leases.ask(TWO, LEASE_MS).leader == alive


def test_whoever_does_not_lead_is_not_heard() -> None:
    clock = FakeClock()
    leases = Leases(clock)
    with pytest.raises(NobodyLeads):
        leases.check(ONE.id)
    leases.ask(TWO, LEASE_MS)
    leases.check(TWO.id)
    with pytest.raises(AnotherLeads, match="process 22 on host-2"):
        leases.check(ONE.id)
    clock.advance(LEASE_MS * 1_000)
    for mover in (ONE, TWO):
        with pytest.raises(NobodyLeads):
            leases.check(mover.id)


class Owner:
    """Leases as a mover reaches them, and an owner that may not answer."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self.answers = True

    def ask_to_lead(self, mover: MoverName, lease_ms: int) -> Lead:
        if not self.answers:
            raise OwnerUnreachable("grpc://nowhere", "made by the test")
        return self._leases.ask(mover, lease_ms)

    def give_up(self, mover: MoverName) -> None:
        if not self.answers:
            raise OwnerUnreachable("grpc://nowhere", "made by the test")
        self._leases.give_up(mover.id)


def test_a_mover_that_was_stopped_too_long_knows_that_it_no_longer_leads_before_it_asks() -> None:
    clock = FakeClock()
    leadership = Leadership(Owner(Leases(clock)), ONE, LEASE_MS, clock)
    assert not leadership.leads
    leadership.ask()
    assert leadership.leads
    clock.advance(LEASE_MS * 1_000)
    assert not leadership.leads


def test_an_owner_that_does_not_answer_takes_no_lead_away_before_its_time() -> None:
    clock = FakeClock()
    owner = Owner(Leases(clock))
    leadership = Leadership(owner, ONE, LEASE_MS, clock)
    leadership.ask()
    owner.answers = False
    clock.advance(5_000_000)
    with pytest.raises(OwnerUnreachable):
        leadership.ask()
    assert leadership.leads
    leadership.close()  # the owner does not hear it, and the lease runs out


def test_a_mover_whose_key_was_revoked_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    class Refusing(Owner):
        asked = 0
        thrice = threading.Event()

        def ask_to_lead(self, mover: MoverName, lease_ms: int) -> Lead:
            self.asked += 1
            if self.asked == 1:
                return super().ask_to_lead(mover, lease_ms)
            if self.asked == 4:
                self.thrice.set()
            raise Unauthenticated

    clock = FakeClock()
    owner = Refusing(Leases(clock))
    leadership = Leadership(owner, ONE, 30, clock)
    leadership.ask()
    leadership.start()
    assert owner.thrice.wait(30)
    leadership.close()
    (said,) = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert said.startswith("the owner refuses this mover, which stands by: credentials are missing or invalid")


def test_a_mover_that_ends_gives_the_lead_to_the_next() -> None:
    clock = FakeClock()
    leases = Leases(clock)
    first, second = (Leadership(Owner(leases), name, LEASE_MS, clock) for name in (ONE, TWO))
    first.ask()
    second.ask()
    assert (first.leads, second.leads, second.leader) == (True, False, ONE)
    second.close()
    assert leases.leader() == ONE
    first.close()
    second.ask()
    assert (second.leads, second.leader) == (True, None)


def test_a_single_run_is_refused_while_another_leads() -> None:
    clock = FakeClock()
    leases = Leases(clock)
    leases.ask(TWO, LEASE_MS)
    with pytest.raises(AnotherLeads, match="process 22 on host-2"):
        Leadership(Owner(leases), ONE, LEASE_MS, clock).must_lead()


def test_the_lead_is_kept_in_the_background() -> None:
    clock = FakeClock()
    leases = Leases(clock)
    kept: list[int] = []
    leadership = Leadership(Owner(leases), ONE, 30, clock, lambda: kept.append(clock.monotonic_us()))
    leadership.ask()
    leadership.start()
    while len(kept) < 3:
        clock.advance(1)
    leadership.close()
    assert leases.leader() is None
