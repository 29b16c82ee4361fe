"""Long-running work as jobs: one job of each kind runs at a time, some are queued, recent ones are kept.

A `Jobs` object is created and used on one event loop. Each job is a separate process that runs a verb of the command
line, so that it does not slow down publishers. The process ends with the server, because it holds the read end of a
pipe. It reports progress in lines like `{"rows": 3, "total": 7}`; its other output is the result.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from frazil.core.clock import Clock
from frazil.core.errors import FrazilError, JobNotFound, TooManyJobs
from frazil.core.process.child import Child
from frazil.node.jobs.verbs import Command, failure_of
from frazil.node.threads import Threads

WAITING_MAX = 16
ENDED_MAX = 50


@dataclass(slots=True)
class Job:
    id: str
    asked: dict[str, Any]
    """The request, for display."""
    arguments: Sequence[str]
    created_us: int
    state: str = "queued"
    done: int = 0
    total: int | None = None
    started_us: int | None = None
    ended_us: int | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    child: Child | None = None

    @property
    def has_ended(self) -> bool:
        return self.state in ("done", "failed", "cancelled")

    def as_dict(self, counted: str) -> dict[str, Any]:
        names = ("state", "total", "created_us", "started_us", "ended_us", "result", "error")
        return {"id": self.id, **self.asked, counted: self.done, **{name: getattr(self, name) for name in names}}


class Jobs:
    """Jobs of one kind: `command` is the verb, `counted` the unit of progress, `what` the kind's name in messages."""

    def __init__(self, command: Sequence[str], clock: Clock, counted: str = "rows", what: str = "proof") -> None:
        self._command = list(command)
        self._clock = clock
        self.counted = counted
        self.what = what
        self._numbers = itertools.count()
        self._jobs: dict[str, Job] = {}
        self._waiting: deque[Job] = deque()
        self._task: asyncio.Task[None] | None = None
        self._threads = Threads(f"frazil-{what}", 1)  # of its own: a job may run for hours

    def start(self, asked: dict[str, Any], arguments: Sequence[str] = ()) -> Job:
        if len(self._waiting) >= WAITING_MAX:
            raise TooManyJobs(WAITING_MAX)
        now_us = self._clock.now_us()
        job = Job(f"{now_us:014x}-{next(self._numbers):x}", asked, arguments, now_us)
        self._jobs[job.id] = job
        self._waiting.append(job)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name=f"{self.what} jobs")
        return job

    def all(self) -> list[Job]:
        return list(self._jobs.values())

    def get(self, number: str) -> Job:
        found = self._jobs.get(number)
        if found is None:
            raise JobNotFound(number)
        return found

    def cancel(self, number: str) -> Job:
        """Cancel a waiting or running job; remove one that has ended."""
        job = self.get(number)
        if job.has_ended:
            del self._jobs[job.id]
            return job
        if job.state == "queued":
            self._waiting.remove(job)
        self._end(job, "cancelled")
        _kill(job)
        return job

    async def _work(self) -> None:
        while self._waiting:
            job = self._waiting.popleft()
            job.state, job.started_us = "running", self._clock.now_us()
            try:
                await self._threads.run(self._run, job)
            except (OSError, ValueError, TypeError) as error:
                job.error = FrazilError(f"the {self.what} could not be run: {error}").as_dict()
            finally:  # also when the loop ends: the thread runs until its process has ended
                _kill(job)
            if not job.has_ended:
                self._end(job, "failed" if job.result is None else "done")

    def _run(self, job: Job) -> None:
        """Run the job's process. Runs in a thread because it blocks: asyncio would fork, which gRPC does not allow."""
        with Child([*self._command, *job.arguments]) as child:
            job.child = child
            if job.has_ended:  # cancelled while it was started
                child.kill()
            for line in child.lines():
                message = json.loads(line)
                if set(message) == {self.counted, "total"}:
                    job.total = message["total"]
                    job.done = min(message[self.counted], message["total"])
                else:
                    job.result = message
            code = child.wait()
            if job.result is None:
                job.error = None if job.has_ended else failure_of(child, code, self.what)
            else:
                job.done = job.total or 0

    def _end(self, job: Job, state: str) -> None:
        job.state, job.ended_us = state, self._clock.now_us()
        ended = [one.id for one in self._jobs.values() if one.has_ended]
        for old in ended[:-ENDED_MAX]:
            del self._jobs[old]


@dataclass(frozen=True, slots=True)
class AdminJobs:
    """The kinds of jobs that a serving process runs."""

    command: Command
    verify: Jobs
    maintenance: Jobs
    checks: Jobs

    @classmethod
    def of(cls, command: Command, clock: Clock) -> AdminJobs:
        """Return all kinds of jobs. `--while-stdin` makes a verb do the work itself, and end with this process."""

        def job(*verb: str) -> list[str]:
            return command(*verb, "--while-stdin", "--progress-json", "--json")

        return cls(
            job,
            Jobs(job("verify"), clock),
            Jobs([], clock, "tables", "maintenance"),
            Jobs(job("log", "check"), clock, "bytes", "check"),
        )


def _kill(job: Job) -> None:
    if job.child is not None:
        job.child.kill()  # no effect if it has ended
