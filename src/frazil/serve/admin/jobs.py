"""Proofs as jobs: one runs at a time, some wait, the last ones are kept. Made and used on one event loop.

Each is a process of its own, `frazil verify`: it reads everything there is, and those who publish must not feel it. It
ends with us however we end, for it holds the read end of a pipe of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import subprocess
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from frazil.core.clock import Clock
from frazil.core.errors import FrazilError, JobNotFound, TooManyJobs

WAITING_MAX = 16
ENDED_MAX = 50
STDERR_BYTES_MAX = 64 * 1024

_log = logging.getLogger("frazil.serve")


@dataclass(slots=True)
class VerifyJob:
    id: str
    topic: str | None
    created_us: int
    state: str = "queued"
    rows: int = 0
    total: int | None = None
    started_us: int | None = None
    ended_us: int | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    process: subprocess.Popen[bytes] | None = None

    @property
    def has_ended(self) -> bool:
        return self.state in ("done", "failed", "cancelled")

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__ if name != "process"}


class VerifyJobs:
    def __init__(self, command: Sequence[str], clock: Clock) -> None:
        self._command = list(command)
        self._clock = clock
        self._numbers = itertools.count()
        self._jobs: dict[str, VerifyJob] = {}
        self._waiting: deque[VerifyJob] = deque()
        self._task: asyncio.Task[None] | None = None

    def start(self, topic: str | None) -> VerifyJob:
        if len(self._waiting) >= WAITING_MAX:
            raise TooManyJobs(WAITING_MAX)
        now_us = self._clock.now_us()
        job = VerifyJob(f"{now_us:014x}-{next(self._numbers):x}", topic, now_us)
        self._jobs[job.id] = job
        self._waiting.append(job)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name="verify jobs")
        return job

    def all(self) -> list[VerifyJob]:
        return list(self._jobs.values())

    def get(self, number: str) -> VerifyJob:
        found = self._jobs.get(number)
        if found is None:
            raise JobNotFound(number)
        return found

    def cancel(self, number: str) -> VerifyJob:
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
                job.error = FrazilError(f"the proof could not be run: {error}").as_dict()
            finally:  # also when the loop ends: the thread goes on until its process is gone
                _kill(job)
            if not job.has_ended:
                self._end(job, "failed" if job.result is None else "done")

    def _run(self, job: VerifyJob) -> None:
        """In a thread, with a plain `Popen`: what gRPC does when its process is forked must not happen here."""
        command = [*self._command, *([] if job.topic is None else [job.topic])]
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
                if "proven" in told:
                    job.result = told
                else:
                    job.total = told["total"]
                    job.rows = min(told["rows"], told["total"])
            code = process.wait()
            if job.result is None:
                errors.seek(max(0, errors.seek(0, 2) - STDERR_BYTES_MAX))
                job.error = None if job.has_ended else _error(errors.read(), code)
            else:
                job.rows = job.total or 0

    def _end(self, job: VerifyJob, state: str) -> None:
        job.state, job.ended_us = state, self._clock.now_us()
        ended = [one.id for one in self._jobs.values() if one.has_ended]
        for old in ended[:-ENDED_MAX]:
            del self._jobs[old]


def _kill(job: VerifyJob) -> None:
    if job.process is not None:
        job.process.kill()  # nothing if it has ended


def _error(stderr: bytes, code: int) -> dict[str, Any]:
    """What the verb says of its failure: the last line, as `--json` has it."""
    lines = stderr.decode(errors="replace").strip().splitlines()
    with contextlib.suppress(ValueError):
        told = json.loads(lines[-1]) if lines else None
        if isinstance(told, dict) and "error" in told and "message" in told:
            return told
    _log.error("a proof ended with code %d: %s", code, " | ".join(lines[-5:]))
    return FrazilError(f"the proof ended with code {code}; see the log", code=code).as_dict()
