"""Long work as jobs, with a small program in place of the verb: bounds, failures, cancelling."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import pytest

from frazil.core.clock import SystemClock
from frazil.core.errors import JobNotFound, TooManyJobs
from frazil.node.jobs import jobs as module
from frazil.node.jobs.jobs import Job, Jobs

PROVES = """
import json, sys
print(json.dumps({"rows": 99, "total": 7}))
print(json.dumps({"proven": False, "topics": sys.argv[1:]}))
sys.exit(1)
"""
WAITS = 'import sys; print(\'{"rows": 1, "total": 2}\', flush=True); sys.stdin.read()'


def made(program: str) -> Jobs:
    return Jobs([sys.executable, "-c", program], SystemClock())


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(1_500):
        if is_so():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to be")


async def ended(program: str, topic: str | None = None) -> Job:
    jobs = made(program)
    job = jobs.start({"topic": topic}, [] if topic is None else [topic])
    await until(lambda: job.has_ended)
    return job


def test_what_the_verb_says_is_the_result_also_where_nothing_is_proven() -> None:
    job = asyncio.run(ended(PROVES, "/a/b"))
    assert (job.state, job.done, job.total, job.error) == ("done", 7, 7, None)
    assert job.result == {"proven": False, "topics": ["/a/b"]}
    assert job.started_us is not None
    assert job.ended_us is not None
    assert job.created_us <= job.started_us <= job.ended_us


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        ('import sys; sys.exit(\'x\\n{"error": "corrupt_log", "message": "bad"}\')', "corrupt_log", "bad"),
        ("import sys; sys.exit(7)", "error", "ended with code 7"),
        ("print('no json')", "error", "could not be run"),
    ],
)
def test_a_verb_that_fails_is_told_in_its_own_words_if_it_has_any(program: str, code: str, said: str) -> None:
    job = asyncio.run(ended(program))
    assert (job.state, job.result) == ("failed", None)
    assert job.error is not None
    assert job.error["error"] == code
    assert said in job.error["message"]


def test_a_program_that_is_not_there_fails_the_job_and_not_the_next() -> None:
    async def work() -> None:
        jobs = Jobs(["/nothing/here"], SystemClock())
        pair = [jobs.start({}), jobs.start({})]
        await until(lambda: all(job.has_ended for job in pair))
        assert [job.state for job in pair] == ["failed", "failed"]

    asyncio.run(work())


def test_one_runs_some_wait_and_more_are_refused() -> None:
    async def work() -> None:
        jobs = made(WAITS)
        first = jobs.start({})
        await until(lambda: first.done == 1)
        waiting = [jobs.start({}) for _ in range(module.WAITING_MAX)]
        with pytest.raises(TooManyJobs):
            jobs.start({})
        assert {job.state for job in waiting} == {"queued"}
        for job in waiting[1:]:
            jobs.cancel(job.id)
        child = first.child
        assert child is not None
        assert jobs.cancel(first.id).state == "cancelled"
        await until(lambda: not child.is_running and waiting[0].done == 1)
        jobs.cancel(waiting[0].id)
        await until(lambda: waiting[0].child is not None and not waiting[0].child.is_running)

    asyncio.run(work())


def test_only_the_last_that_ended_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENDED_MAX", 2)

    async def work() -> None:
        jobs = made(WAITS)
        running = jobs.start({})
        others = [jobs.start({}) for _ in range(4)]
        for job in others:
            jobs.cancel(job.id)
        assert [job.id for job in jobs.all()] == [running.id, *(job.id for job in others[2:])]
        with pytest.raises(JobNotFound):
            jobs.get(others[0].id)
        jobs.cancel(others[3].id)
        assert [job.id for job in jobs.all()] == [running.id, others[2].id]
        jobs.cancel(running.id)

    asyncio.run(work())


def test_a_loop_that_ends_takes_the_program_with_it() -> None:
    async def work() -> Job:
        jobs = made(WAITS)
        job = jobs.start({})
        await until(lambda: job.done == 1)
        return job

    job = asyncio.run(work())
    assert job.child is not None
    assert job.child.wait(30) < 0  # killed
