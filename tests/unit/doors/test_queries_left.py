"""A query whose caller leaves is ended, at whatever moment."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from frazil.core.principal import LOCAL
from frazil.doors.flight.get.sql import SqlAnswers, _Question

SECONDS = 20


class Started:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.closed = threading.Event()

    def kill(self) -> None:
        self.calls.append("kill")

    def close(self) -> None:
        self.calls.append("close")
        self.closed.set()


class SlowNode:
    """Its queries start when `go` is set."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.started = Started()

    def query(self, *_: Any, **__: Any) -> Started:
        self.begun.set()
        assert self.go.wait(SECONDS)
        return self.started


def test_a_query_whose_caller_leaves_while_it_starts_is_ended() -> None:
    node = SlowNode()

    async def work() -> None:
        answers = SqlAnswers(node, None, 60)  # type: ignore[arg-type]
        call = asyncio.create_task(answers._started(LOCAL, _Question(query="select 1"), None))
        assert await asyncio.to_thread(node.begun.wait, SECONDS)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(work())
    node.go.set()  # the loop of the call has ended
    assert node.started.closed.wait(SECONDS)
    assert node.started.calls == ["kill", "close"]
