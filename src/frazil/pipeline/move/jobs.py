"""The interface between the mover and the runner of its tasks: Spark in production, this process in tests.

The mover plans, passes its tasks to a `JobRunner` and commits the results. It never calls Spark itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from frazil.pipeline.move.outputs import Target
from frazil.pipeline.move.tasks import LogRange, RangeInput, RangeOutput
from frazil.pipeline.transform.statement import Statement


class JobRunner(Protocol):
    """Runs the tasks of a tick. It commits nothing: outputs are files that are in no table yet."""

    def tasks_max(self) -> int:
        """Return the current limit on the tasks of a job."""
        ...

    def is_alive(self) -> bool:
        """Whether an empty job runs: distinguishes a failed job from a dead runner."""
        ...

    def run(self, tasks: Sequence[Sequence[RangeInput]]) -> list[RangeOutput]:
        """Run all tasks as one job and return one output for each range, with the files of all its tables."""
        ...

    def result_columns(self, statement: Statement, stored: pa.Schema) -> pa.Schema:
        """Return the columns of a statement's result; raises `InvalidSettings` if it is no query or a table cannot hold
        them."""
        ...

    def run_statement(
        self,
        statement: Statement,
        tasks: Sequence[Sequence[LogRange]],
        stored: pa.Schema,
        columns: pa.Schema,
        target: Target,
        flush_bytes: int,
    ) -> RangeOutput:
        """Run a topic's statement over its ranges as a separate job."""
        ...
