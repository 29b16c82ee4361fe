"""Long work as jobs: of each kind one runs at a time, some wait, the last ones are kept. Made and used on one event
loop.

Each is a process of its own, a verb of the command line: it reads everything there is, and those who publish must not
feel it. It ends with us however we end, for it holds the read end of a pipe of ours. On the way it tells how much it
has done, in lines like `{"rows": 3, "total": 7}`; what else it prints is its result.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from frazil.core.clock import Clock
from frazil.core.errors import FrazilError, JobNotFound, TooManyJobs
from frazil.serve.verbs import failure_of

WAITING_MAX = 16
ENDED_MAX = 50


@dataclass(slots=True)
class Job:
    id: str
    asked: dict[str, Any]
    """What it was begun with, for whoever looks."""
    arguments: Sequence[str]
    created_us: int
    state: str = "queued"
    done: int = 0
    total: int | None = None
    started_us: int | None = None
    ended_us: int | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    process: subprocess.Popen[bytes] | None = None

    @property
    def has_ended(self) -> bool:
        return self.state in ("done", "failed", "cancelled")

    def as_dict(self, counted: str) -> dict[str, Any]:
        names = ("state", "total", "created_us", "started_us", "ended_us", "result", "error")
        return {"id": self.id, **self.asked, counted: self.done, **{name: getattr(self, name) for name in names}}


class Jobs:
    """Of one kind: `command` is the verb, `counted` what it counts, `what` its name in messages."""

    def __init__(self, command: Sequence[str], clock: Clock, counted: str = "rows", what: str = "proof") -> None:
        self._command = list(command)
        self._clock = clock
        self.counted = counted
        self.what = what
        self._numbers = itertools.count()
        self._jobs: dict[str, Job] = {}
        self._waiting: deque[Job] = deque()
        self._task: asyncio.Task[None] | None = None

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
        """One that has ended is forgotten."""
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
                await asyncio.to_thread(self._run, job)
            except (OSError, ValueError) as error:
                job.error = FrazilError(f"the {self.what} could not be run: {error}").as_dict()
            finally:  # also when the loop ends: the thread goes on until its process is gone
                _kill(job)
            if not job.has_ended:
                self._end(job, "failed" if job.result is None else "done")

    def _run(self, job: Job) -> None:
        """In a thread, with a plain `Popen`: what gRPC does when its process is forked must not happen here."""
        command = [*self._command, *job.arguments]
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(  # noqa: S603 - our own program
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            ) as process,
        ):
            job.process = process
            if job.has_ended:  # cancelled while it was started
                process.kill()
            assert process.stdout is not None
            for line in process.stdout:
                told = json.loads(line)
                if set(told) == {self.counted, "total"}:
                    job.total = told["total"]
                    job.done = min(told[self.counted], told["total"])
                else:
                    job.result = told
            code = process.wait()
            if job.result is None:
                job.error = None if job.has_ended else failure_of(errors, code, self.what)
            else:
                job.done = job.total or 0

    def _end(self, job: Job, state: str) -> None:
        job.state, job.ended_us = state, self._clock.now_us()
        ended = [one.id for one in self._jobs.values() if one.has_ended]
        for old in ended[:-ENDED_MAX]:
            del self._jobs[old]


def _kill(job: Job) -> None:
    if job.process is not None:
        job.process.kill()  # nothing if it has ended
