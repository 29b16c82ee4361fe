"""A budget of bytes that requests share, from their first byte until they are answered.

    with budget.holding(): ...        for each request; everything that it has taken is given back at the end
    await take(sender, size, …)       before so much is received: waits for its turn, for a limited time
    keep(size)                        what is needed from now on, less or more; never waits

The number of requests is limited too. Each sender may have half of both, so that one alone cannot keep out the others.
Of those that wait, the sender that holds least is next: if several hold everything, another one waits only until the
first of their requests has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Iterator
from contextvars import ContextVar
from typing import NamedTuple

from frazil.core.errors import Overloaded, TooManyCalls

RETRY_AFTER_MS = 1_000

_held: ContextVar[HeldBytes] = ContextVar("held")


class BudgetLimits(NamedTuple):
    """Each beside the setting that has it."""

    bytes_setting: str
    bytes_max: int
    requests_setting: str
    requests_max: int


class HeldBytes:
    """What one request holds."""

    __slots__ = ("budget", "sender", "size")

    def __init__(self, budget: SharedBytes) -> None:
        self.budget = budget
        self.sender: str | None = None
        self.size = 0


class _Waiting(NamedTuple):
    sender: str
    size: int
    turn: asyncio.Future[None]


class SharedBytes:
    """Used on one event loop."""

    def __init__(self, limits: BudgetLimits) -> None:
        self._limits = limits
        self._of_one_max = limits.bytes_max // 2
        self._senders: Counter[str] = Counter()
        self._requests: Counter[str] = Counter()
        self._waiting: dict[str, deque[_Waiting]] = {}
        """By sender, in the order in which they came."""
        self.used_bytes = 0
        self.requests = 0

    @contextlib.contextmanager
    def holding(self) -> Iterator[HeldBytes]:
        """Give back at the end what the request of this task has taken."""
        held = HeldBytes(self)
        token = _held.set(held)
        try:
            yield held
        finally:
            _held.reset(token)
            self._change(held, 0)
            if held.sender is not None:
                self._leave(held.sender)

    async def take(self, sender: str, size: int, seconds_max: float) -> None:
        """Take room for the request of this task, in turn, once. Raises `TooManyCalls`, and `Overloaded` if there is no
        room in time."""
        held = _held.get()
        assert held.sender is None
        self._enter(sender)
        held.sender = sender
        if self._waiting or not self._has_room(sender, size):
            await self._turn(sender, size, seconds_max)
            held.size = size  # the room was taken for this task when its turn came
        else:
            self._change(held, size)

    def keep(self, size: int) -> None:
        """Set how much the request of this task needs; raises `Overloaded` if it needs more and there is no room."""
        held = _held.get()
        assert held.sender is not None
        if size > held.size and not self._has_room(held.sender, size - held.size):
            raise self._overloaded()
        self._change(held, size)

    async def _turn(self, sender: str, size: int, seconds_max: float) -> None:
        waiting = _Waiting(sender, size, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(sender, deque()).append(waiting)
        self._wake()  # others may wait for one sender alone
        try:
            async with asyncio.timeout(seconds_max):
                await waiting.turn
        except TimeoutError:
            self._give_up(waiting)
            raise self._overloaded() from None
        except BaseException:
            self._give_up(waiting)
            raise

    def _give_up(self, waiting: _Waiting) -> None:
        if waiting.turn.cancelled():
            self._remove(waiting)
        else:  # its turn came at the very moment that nobody waited for it any more
            self._add(waiting.sender, -waiting.size)
        self._wake()

    def _has_room(self, sender: str, size: int) -> bool:
        return self.used_bytes + size <= self._limits.bytes_max and self._senders[sender] + size <= self._of_one_max

    def _change(self, held: HeldBytes, size: int) -> None:
        less = held.size - size
        if less == 0:
            return
        assert held.sender is not None
        held.size = size
        self._add(held.sender, -less)
        if less > 0:
            self._wake()

    def _add(self, sender: str, size: int) -> None:
        self.used_bytes += size
        self._senders[sender] += size
        if not self._senders[sender]:
            del self._senders[sender]

    def _wake(self) -> None:
        """Let those go on for whom there is room. A sender that has its half waits alone."""
        while (waiting := self._next()) is not None and self.used_bytes + waiting.size <= self._limits.bytes_max:
            self._remove(waiting)
            self._add(waiting.sender, waiting.size)
            waiting.turn.set_result(None)

    def _next(self) -> _Waiting | None:
        """Return the first request of the sender that holds least, of those that may hold more.

        One that was cancelled is left to its task, which runs soon.
        """
        first = [queue[0] for queue in self._waiting.values() if not queue[0].turn.cancelled()]
        may_hold = (one for one in first if self._senders[one.sender] + one.size <= self._of_one_max)
        return min(may_hold, key=lambda one: self._senders[one.sender], default=None)

    def _remove(self, waiting: _Waiting) -> None:
        own = self._waiting[waiting.sender]
        own.remove(waiting)
        if not own:
            del self._waiting[waiting.sender]

    def _overloaded(self) -> Overloaded:
        limits = self._limits
        return Overloaded(f"request ({limits.bytes_setting})", limits.bytes_max, RETRY_AFTER_MS)

    def _enter(self, sender: str) -> None:
        limits = self._limits
        if self.requests >= limits.requests_max or self._requests[sender] >= max(1, limits.requests_max // 2):
            raise TooManyCalls(limits.requests_setting, limits.requests_max)
        self.requests += 1
        self._requests[sender] += 1

    def _leave(self, sender: str) -> None:
        self.requests -= 1
        self._requests[sender] -= 1
        if not self._requests[sender]:
            del self._requests[sender]
