"""Retry a failed job in halves, until the cause is isolated to one topic.

A task reports errors that Python can catch. Others, such as a worker that is killed for its memory or crashes in native
code, fail the job of all topics.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from frazil.pipeline.move.jobs import JobRunner
from frazil.pipeline.move.tasks import RangeInput, RangeOutput, failed_range

_log = logging.getLogger("frazil.pipeline")


def run_apart(jobs: JobRunner, tasks: Sequence[Sequence[RangeInput]]) -> list[RangeOutput]:
    """Return the outputs of all ranges: a topic whose job fails even alone gets that as its error.

    A dead runner raises: that is no topic's fault.
    """
    try:
        return jobs.run(tasks)
    except Exception as error:
        if not jobs.is_alive():
            raise
        halves = _halves(tasks)
        if halves is None:
            return [failed_range(one, error) for task in tasks for one in task]
        _log.warning("a job failed (%s); its topics are run in two jobs", type(error).__name__)
    return [output for half in halves for output in run_apart(jobs, half)]


def _halves(tasks: Sequence[Sequence[RangeInput]]) -> list[list[list[RangeInput]]] | None:
    """Return the tasks of one half of the logs, and of the other; None if all belong to one log."""
    logs = sorted({one.source.log_id for task in tasks for one in task})
    if len(logs) < 2:
        return None
    parts = (set(logs[: len(logs) // 2]), set(logs[len(logs) // 2 :]))
    found = [[[one for one in task if one.source.log_id in part] for task in tasks] for part in parts]
    return [[task for task in half if task] for half in found]
