from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from frazil.core.errors import Overloaded, TooManyCalls
from frazil.doors.shared_bytes import BudgetLimits, SharedBytes

SOON, LONG = 0.01, 30.0


class Requests:
    """Requests of several senders in their own tasks, which hold what they have taken until they are told to end."""

    def __init__(self, bytes_max: int = 8, requests_max: int = 100) -> None:
        self.budget = SharedBytes(BudgetLimits("bytes", bytes_max, "requests", requests_max))
        self.taken: list[str] = []
        self._tasks: list[tuple[str, asyncio.Task[None], asyncio.Event]] = []

    async def begin(self, sender: str, size: int = 1, seconds_max: float = LONG) -> asyncio.Task[None]:
        ended = asyncio.Event()

        async def hold() -> None:
            with self.budget.holding():
                await self.budget.take(sender, size, seconds_max)
                self.taken.append(sender)
                await ended.wait()

        task = asyncio.create_task(hold())
        self._tasks.append((sender, task, ended))
        await settled()
        return task

    def let_end(self, sender: str) -> None:
        """Let the oldest request of a sender that has not ended end, as soon as its task runs."""
        next(one for one in self._tasks if one[0] == sender and not one[2].is_set())[2].set()

    async def end(self, sender: str) -> None:
        self.let_end(sender)
        await settled()

    async def end_all(self) -> None:
        for _, task, ended in self._tasks:
            ended.set()
            with contextlib.suppress(asyncio.CancelledError, Overloaded, TooManyCalls):
                await task


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def run(work: Callable[[Requests], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def test() -> None:
        async def inside() -> None:
            requests = Requests()
            await asyncio.wait_for(work(requests), LONG)
            await requests.end_all()
            assert (requests.budget.used_bytes, requests.budget.requests) == (0, 0)

        asyncio.run(inside())

    test.__name__, test.__doc__ = work.__name__, work.__doc__
    return test


@run
async def test_one_sender_has_at_most_half(requests: Requests) -> None:
    for _ in range(6):
        await requests.begin("a")
    await requests.begin("b")
    assert (requests.taken, requests.budget.used_bytes) == (["a"] * 4 + ["b"], 5)


@run
async def test_of_those_that_wait_the_sender_that_holds_least_is_next(requests: Requests) -> None:
    """Two senders together hold everything, and wait for more before another one comes."""
    for sender in ("a", "b") * 8:
        await requests.begin(sender)
    await requests.begin("c")
    assert "c" not in requests.taken
    await requests.end("a")
    assert requests.taken[8:] == ["c"]
    await requests.end("c")
    assert requests.taken[9:] == ["a"]


@run
async def test_requests_of_one_sender_go_on_in_their_order(requests: Requests) -> None:
    for _ in range(4):
        await requests.begin("a")
    tasks = [await requests.begin("a") for _ in range(3)]
    await requests.end("a")
    assert [one.done() for one in tasks] == [False] * 3
    assert requests.budget.used_bytes == 4
    tasks[0].cancel()
    await settled()
    assert requests.budget.used_bytes == 4


@run
async def test_a_large_request_is_not_overtaken_for_ever_by_small_ones(requests: Requests) -> None:
    for sender in ("a", "b"):
        for _ in range(3):
            await requests.begin(sender)
    large = await requests.begin("c", 4)
    await requests.begin("d", 2)
    assert "d" not in requests.taken
    await requests.end("a")
    await requests.end("b")
    assert requests.taken[6:] == ["c"]
    assert not large.done()


@run
async def test_a_request_without_room_in_time_is_refused_and_holds_nothing(requests: Requests) -> None:
    for sender in ("a", "b"):
        await requests.begin(sender, 4)
    with pytest.raises(Overloaded):
        await (await requests.begin("c", 1, SOON))
    assert requests.budget.used_bytes == 8
    await requests.end("a")
    assert requests.budget.used_bytes == 4


@run
async def test_a_request_that_is_cancelled_as_room_comes_breaks_no_other(requests: Requests) -> None:
    """Its task has not run yet when another request ends and looks who is next."""
    for sender in ("a", "b"):
        await requests.begin(sender, 4)
    gone, waiting = await requests.begin("c", 4), await requests.begin("d", 4)
    requests.let_end("a")
    gone.cancel()
    await settled()
    assert gone.cancelled()
    assert not waiting.done()
    assert requests.taken == ["a", "b", "d"]


@run
async def test_a_sender_has_at_most_half_of_the_requests(requests: Requests) -> None:
    few = Requests(requests_max=4)
    for _ in range(2):
        await few.begin("a")
    with pytest.raises(TooManyCalls):
        await (await few.begin("a"))
    await few.begin("b")
    assert few.budget.requests == 3
    await few.end_all()
