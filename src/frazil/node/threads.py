"""Threads for blocking calls. Each kind of work has its own, so that a hanging call delays no other kind."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


class Threads:
    def __init__(self, name: str, count_max: int) -> None:
        self._pool = ThreadPoolExecutor(count_max, name)

    async def run(self, work: Callable[Given, Answer], *arguments: Given.args, **named: Given.kwargs) -> Answer:
        kept = contextvars.copy_context()  # with the request id, for log lines
        call = functools.partial(kept.run, work, *arguments, **named)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        """End the threads without waiting for running calls."""
        self._pool.shutdown(wait=False, cancel_futures=True)
