"""A runner for the mover's tasks in this process, one after another, without a JVM."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa

from frazil.core.errors import InvalidSettings
from frazil.pipeline.move.outputs import Target
from frazil.pipeline.move.tasks import LogRange, RangeInput, RangeOutput, move_range
from frazil.pipeline.transform.statement import Statement


class InProcessJobs:
    """A `frazil.pipeline.move.jobs.JobRunner`. Inputs and outputs are pickled, as for Spark.

    `meanwhile` is called before the tasks of each job, to simulate events between the plan and the commit. Statements
    need Spark and are refused.
    """

    def __init__(self, tasks: int = 2, meanwhile: Callable[[], None] = lambda: None) -> None:
        self._tasks = tasks
        self.meanwhile = meanwhile

    def tasks_max(self) -> int:
        return self._tasks

    def is_alive(self) -> bool:
        return True

    def run(self, tasks: Sequence[Sequence[RangeInput]]) -> list[RangeOutput]:
        if not tasks:
            return []
        self.meanwhile()
        return [_through_pickle(move_range(_through_pickle(one))) for task in tasks for one in task]

    def result_columns(self, statement: Statement, stored: pa.Schema) -> pa.Schema:  # noqa: ARG002 - as the port has it
        raise InvalidSettings(f"{statement.setting}: a statement needs Spark")

    def run_statement(
        self,
        statement: Statement,
        tasks: Sequence[Sequence[LogRange]],  # noqa: ARG002 - as the port has it
        stored: pa.Schema,  # noqa: ARG002
        columns: pa.Schema,  # noqa: ARG002
        target: Target,  # noqa: ARG002
        flush_bytes: int,  # noqa: ARG002
    ) -> RangeOutput:
        raise InvalidSettings(f"{statement.setting}: a statement needs Spark")


_T = TypeVar("_T")


def _through_pickle(value: _T) -> _T:
    copy: _T = pickle.loads(pickle.dumps(value))  # noqa: S301 - our own bytes
    return copy
