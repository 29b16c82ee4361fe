"""The seam between the mover and what runs its tasks: Spark in production, this process in tests.

The mover plans, hands its tasks to a `JobRunner` and commits what comes back. It never speaks to Spark itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import pyarrow as pa

from frazil.lake.files import TableFiles
from frazil.pipeline.statement import Statement
from frazil.pipeline.work import LogRange, RangeInput, RangeOutput


@runtime_checkable
class JobRunner(Protocol):
    """Runs the tasks of a tick. It commits nothing: outputs are files that are in no table yet."""

    def tasks_max(self) -> int:
        """How many tasks a job may have now."""
        ...

    def is_alive(self) -> bool:
        """Whether a job without work runs: tells a job that failed from a runner that is gone."""
        ...

    def run(self, tasks: Sequence[Sequence[RangeInput]]) -> list[RangeOutput]:
        """Run all tasks as one job and return one output for each range."""
        ...

    def result_columns(self, statement: Statement, stored: pa.Schema) -> pa.Schema:
        """The columns that a statement yields; `InvalidSettings` if it is no query or a table can't hold them."""
        ...

    def run_statement(
        self,
        statement: Statement,
        tasks: Sequence[Sequence[LogRange]],
        stored: pa.Schema,
        columns: pa.Schema,
        table: TableFiles,
        flush_bytes: int,
    ) -> RangeOutput:
        """Run a topic's statement over its ranges as one job of its own."""
        ...
