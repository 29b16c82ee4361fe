"""Spark as the runner of the mover's jobs."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import SparkSession

from frazil.core.settings import Settings
from frazil.pipeline.move.outputs import Target
from frazil.pipeline.move.plan import flush_bytes
from frazil.pipeline.move.tasks import LogRange, RangeInput, RangeOutput
from frazil.pipeline.spark.session import is_alive, run_tasks, task_count
from frazil.pipeline.transform.statement import Statement
from frazil.pipeline.transform.transform import prepare, result_columns, run_statement


class SparkJobs:
    """A `JobRunner`: each job is one Spark job of the session."""

    def __init__(self, session: SparkSession, settings: Settings) -> None:
        self._session = session
        self._tasks_max = task_count(session, settings.pipeline.tasks)
        prepare(session, min(flush_bytes(writer) for writer in settings.writers()))

    def tasks_max(self) -> int:
        return self._tasks_max()

    def is_alive(self) -> bool:
        return is_alive(self._session)

    def run(self, tasks: Sequence[Sequence[RangeInput]]) -> list[RangeOutput]:
        return run_tasks(self._session, tasks)

    def result_columns(self, statement: Statement, stored: pa.Schema) -> pa.Schema:
        return result_columns(self._session, statement, stored)

    def run_statement(
        self,
        statement: Statement,
        tasks: Sequence[Sequence[LogRange]],
        stored: pa.Schema,
        columns: pa.Schema,
        target: Target,
        flush_bytes: int,
    ) -> RangeOutput:
        return run_statement(self._session, statement, tasks, stored, columns, target, flush_bytes)
