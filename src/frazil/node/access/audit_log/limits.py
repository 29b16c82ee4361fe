"""Which decisions get a line of their own in the audit log. The others are counted, and a line tells how many.

    refusals        each caller has `REFUSALS_MAX` lines for an action at once, and one more each second; callers that
                    are not identified share theirs
    allowed calls   each caller has `ALLOWED_MAX` lines for an action at once, and one more each second; grants have all
    routine calls   those that a mover makes all the time: the first line, and then a count

So a flood fills no disk, pushes out no older lines, and hides neither other callers nor other actions.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, NamedTuple

from frazil.core.access import Action
from frazil.core.clock import Clock
from frazil.core.principal import Principal

REFUSALS_MAX = 20
REFUSAL_INTERVAL_US = 1_000_000
ALLOWED_MAX = 10_000
"""More than a program changes at once. What it may change it may ask for endlessly, also if nothing is there."""
SUMMARY_INTERVAL_US = 60_000_000
"""Between two lines that tell of the same caller's further refusals, or further allowed calls."""
ROUTINE_INTERVAL_US = 600_000_000
TRACKED_MAX = 1_000
"""Callers and their actions that are counted separately. Those beyond share one count."""
ROUTINE = frozenset({"DoAction logs", "DoAction lead", "DoAction tell"})
OTHERS = "others"

Line = dict[str, Any]


class _LineBudget:
    """The refusals of one caller for one action, or its allowed calls: a token bucket, and how many have no line."""

    __slots__ = ("at_us", "counted", "left", "lines_max", "summarized_us")

    def __init__(self, now_us: int, lines_max: int) -> None:
        self.lines_max = lines_max
        self.left = float(lines_max)
        self.at_us = self.summarized_us = now_us
        self.counted = 0

    def takes(self, now_us: int) -> bool:
        self.refill(now_us)
        if self.left >= 1:
            self.left -= 1
            return True
        self.counted += 1
        return False

    def refill(self, now_us: int) -> None:
        self.left = min(float(self.lines_max), self.left + (now_us - self.at_us) / REFUSAL_INTERVAL_US)
        self.at_us = now_us

    def is_idle(self, now_us: int) -> bool:
        self.refill(now_us)
        return self.left >= self.lines_max and not self.counted


class _Routine(NamedTuple):
    """One kind of call by one caller from one host."""

    principal: str
    action: str
    resource: str
    host: str
    call: str


class _Repeated:
    __slots__ = ("count", "since_us")

    def __init__(self, since_us: int) -> None:
        self.count = 0
        self.since_us = since_us


class LineLimits:
    """Any thread may call it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._refusals: OrderedDict[tuple[str, str], _LineBudget] = OrderedDict()
        self._allowed: OrderedDict[tuple[str, str], _LineBudget] = OrderedDict()
        self._routines: dict[_Routine, _Repeated] = {}

    def takes(self, who: Principal, action: str, resource: str, allowed: bool, peer: str, call: str) -> bool:
        """Whether a decision gets a line of its own."""
        now_us = self._clock.monotonic_us()
        with self._guard:
            if not allowed:
                return _of(self._refusals, (who.name, action), now_us, REFUSALS_MAX).takes(now_us)
            if call not in ROUTINE:
                if action == Action.GRANT:
                    return True
                return _of(self._allowed, (who.name, action), now_us, ALLOWED_MAX).takes(now_us)
            return self._takes_routine(_Routine(who.name, action, resource, _host(peer), call), now_us)

    def summaries(self, *, is_final: bool = False) -> list[Line]:
        """Return what is due of the counts, and forget it. At the end everything is."""
        now_us = self._clock.monotonic_us()
        with self._guard:
            return [
                *_counts(self._refusals, "refused", now_us, is_final),
                *_counts(self._allowed, "allowed_more", now_us, is_final),
                *self._repeated(now_us, is_final),
            ]

    def _takes_routine(self, routine: _Routine, now_us: int) -> bool:
        found = self._routines.get(routine)
        if found is not None:
            found.count += 1
            return False
        if len(self._routines) < TRACKED_MAX:
            self._routines[routine] = _Repeated(now_us)
        return True

    def _repeated(self, now_us: int, is_final: bool) -> list[Line]:
        lines = []
        for routine, one in list(self._routines.items()):
            if not is_final and now_us - one.since_us < ROUTINE_INTERVAL_US:
                continue
            if not one.count:
                del self._routines[routine]
                continue
            principal, action, resource, host, call = routine
            line = {"principal": principal, "call": call, "action": action, "resource": resource, "allowed": True}
            lines.append({**line, "from": host, "repeated": one.count})
            one.count, one.since_us = 0, now_us
        return lines


def _of(
    known: OrderedDict[tuple[str, str], _LineBudget], name: tuple[str, str], now_us: int, lines_max: int
) -> _LineBudget:
    found = known.get(name)
    if found is None and len(known) >= TRACKED_MAX:
        oldest = next(iter(known))
        if known[oldest].is_idle(now_us):
            del known[oldest]
        else:
            name = (OTHERS, OTHERS)  # this one more is never dropped
            found = known.get(name)
    if found is None:
        found = known[name] = _LineBudget(now_us, lines_max)
    known.move_to_end(name)
    return found


def _counts(known: OrderedDict[tuple[str, str], _LineBudget], what: str, now_us: int, is_final: bool) -> list[Line]:
    lines: list[Line] = []
    for (principal, action), one in known.items():
        if one.counted and (is_final or now_us - one.summarized_us >= SUMMARY_INTERVAL_US):
            lines.append({"principal": principal, "action": action, what: one.counted})
            one.counted, one.summarized_us = 0, now_us
    return lines


def _host(peer: str) -> str:
    """Return an address without its port."""
    return peer.rpartition(":")[0] or peer
