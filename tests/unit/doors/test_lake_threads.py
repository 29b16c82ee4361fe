"""A catalog that hangs holds up a few threads, and nobody for ever."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from frazil.core.errors import TryLater
from frazil.doors.http.admin.tables import THREADS_MAX, WAITING_MAX, LakeThreads


def test_so_many_hang_some_wait_and_the_next_is_told() -> None:
    async def work() -> None:
        threads, answers, hanging = LakeThreads(), threading.Event(), threading.Semaphore(0)

        def look() -> dict[str, Any]:
            hanging.release()
            assert answers.wait(60)
            return {}

        asked = [asyncio.create_task(threads.run(look)) for _ in range(THREADS_MAX + WAITING_MAX)]
        for _ in range(THREADS_MAX):
            assert await asyncio.to_thread(hanging.acquire, timeout=60)
        with pytest.raises(TryLater):
            await threads.run(look)
        assert not hanging.acquire(blocking=False)
        answers.set()
        assert await asyncio.gather(*asked) == [{}] * len(asked)

    asyncio.run(work())
