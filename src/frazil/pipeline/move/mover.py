"""The mover: plan, run a job, commit each table, report; repeatedly.

One job serves all topics of a tick, except those with a statement, which get their own job. A topic may
have derived tables beside its own, see `outputs`: they are committed first.

The table is the checkpoint. State that the mover caches between ticks only saves queries; the pinned commit refuses
anything based on stale state.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa

from frazil.core.backoff import backoff
from frazil.core.clock import Clock
from frazil.core.errors import FrazilError, TableRefused
from frazil.core.offsets import OffsetRange
from frazil.core.settings import Settings
from frazil.core.settings.lake import MIB
from frazil.lake.commit.commit import delay_seconds
from frazil.lake.files.writer import TableFiles
from frazil.lake.tables.last_row import last_row
from frazil.lake.tables.schema import UNPARTITIONED, TableLayout, TableName
from frazil.lake.tables.store import TableStore
from frazil.node.movers.log_source import LogSource
from frazil.node.movers.tick_report import TickReport, TopicReport
from frazil.pipeline.move.committing import CommitParts, TickCommits, is_old
from frazil.pipeline.move.created_tables import CreatedTables, HasTenant
from frazil.pipeline.move.isolation import run_apart
from frazil.pipeline.move.jobs import JobRunner
from frazil.pipeline.move.moved_topic import MovedTopic
from frazil.pipeline.move.outputs import TableEnd, Target, next_range
from frazil.pipeline.move.plan import RangeTask, Waiting, flush_bytes, plan
from frazil.pipeline.move.row_ages import RowAges, append_time_reader
from frazil.pipeline.move.table_ends import TableEnds
from frazil.pipeline.move.tasks import LogRange, RangeInput, RangeOutput
from frazil.pipeline.move.topic_rules import TopicOf, TopicsOfSettings
from frazil.pipeline.transform.statement import Statement

STATEMENTS_AT_ONCE = 4
DERIVED_BYTES = 64 * MIB
"""How many bytes of derived rows a task gathers before it writes files: as Parquet they are a tenth of that."""
REST_US_MIN, REST_US_MAX = 1_000_000, 30_000_000
STATEMENT_REST_US = 10_000_000
"""A failed statement is not retried at once: its topic waits for a fix, the others for Spark."""

_log = logging.getLogger("frazil.pipeline")


@dataclass(frozen=True, slots=True)
class _Failed:
    """A topic's failure, how often in a row, and until when it backs off."""

    message: str
    code: str | None
    table_end: int
    times: int
    until_us: int


class Mover:
    def __init__(
        self,
        settings: Settings,
        source: LogSource,
        tables: TableStore,
        jobs: JobRunner,
        clock: Clock,
        wait: Callable[[float], None],
        topic_of: TopicOf | None = None,
        has_tenant: HasTenant | None = None,
    ) -> None:
        self._settings = settings
        self._source = source
        self._tables = tables
        self._jobs = jobs
        self._clock = clock
        self._wait = wait
        rules = TopicsOfSettings(settings, clock)
        self._topic_of = topic_of or rules.of
        self._created_tables = CreatedTables(tables, has_tenant or rules.has_tenant)
        self._ages = RowAges(clock, append_time_reader(settings, lambda: (source.address, source.credentials)))
        self._failed: dict[str, _Failed] = {}
        self._columns: dict[tuple[Statement, bytes], pa.Schema] = {}
        self._sharing: dict[TableName, list[MovedTopic]] = {}
        self._table_ends = TableEnds(tables, self._row, self._result_layout, self._back_off)
        self._ends: dict[str, dict[TableName, TableEnd]] = {}
        """By log, as found at the beginning of the tick."""

    def tick(self, *, all_of_it: bool = False) -> TickReport:
        """Move what is due. A topic that fails does not delay the others: its error is in the report."""
        report = self._tick(all_of_it=all_of_it)
        return report.followed_by(self._tick(all_of_it=all_of_it)) if report.is_unfinished else report

    def _tick(self, *, all_of_it: bool) -> TickReport:
        report, self._ends = TickReport(), {}
        topics, tasks_max = self._topics(), self._jobs.tasks_max()
        waiting = [
            one for topic in topics.values() if (one := self._waiting(topic, report, all_of_it=all_of_it)) is not None
        ]
        gone = self._created_tables.check(topics.values(), self._source)
        waiting = [one for one in waiting if topics[one.log_id].info.topic not in gone]
        plain = [one for one in waiting if topics[one.log_id].statement is None]
        tasks = plan(plain, self._clock.now_us(), tasks_max, all_of_it=all_of_it)
        own = [one for one in waiting if topics[one.log_id].statement is not None]
        jobs = [plan([one], self._clock.now_us(), tasks_max, all_of_it=all_of_it) for one in own]
        started_us = self._clock.now_us()
        outputs = self._run(topics, tasks, [job for job in jobs if job], report)
        if outputs and (outputs := self._still_good(topics, outputs, started_us)):
            parts = CommitParts(
                self._tables,
                self._clock,
                self._back_off,
                lambda topic, error: self._fail(topic, report, error),
                self._forget_failure,
            )
            TickCommits(parts, topics, self._ends, report, started_us).commit(outputs)
        return report

    def forget(self) -> None:
        """Drop cached tables: another mover may have committed meanwhile."""
        self._tables.forget_all()

    def _topics(self) -> dict[str, MovedTopic]:
        """Return the topics to move, by log."""
        logs = [self._topic_of(info) for info in self._source.logs()]
        moved = {topic.info.log_id: topic for topic in logs if topic.rules.enabled}
        self._ages.listed(topic.info for topic in moved.values())
        self._sharing = defaultdict(list)
        for topic in moved.values():
            self._sharing[topic.table].append(topic)
        return moved

    def _check_agrees(self, topic: MovedTopic) -> None:
        """Refuse a table that would get both plain rows and results of a statement from partitions of one topic."""
        for table in topic.derived_tables:
            if table in self._sharing:
                owner = self._sharing[table][0].name
                raise TableRefused(
                    f"{table} is the table of {owner}: no rows of {topic.name} are derived for it", table=str(table)
                )
        for other in self._sharing[topic.table]:
            if (other.statement is None) != (topic.statement is None):
                without, by = sorted((topic, other), key=lambda one: one.statement is not None)
                raise TableRefused(
                    f"{topic.table} would get rows of {without.name} as they are and results for {by.name}: set "
                    f"{by.rules.setting('sql')} for all partitions of the topic, or for none",
                    table=str(topic.table),
                )

    def _waiting(self, topic: MovedTopic, report: TickReport, *, all_of_it: bool) -> Waiting | None:
        info = topic.info
        state = report.topics[topic.name] = topic.report(info.held_from)
        if info.durable_end == info.first_offset == 0:
            return None
        failed = self._failed.get(info.log_id)
        if failed is not None and not all_of_it and self._clock.monotonic_us() < failed.until_us:
            state.error, state.error_code, state.table_end = failed.message, failed.code, failed.table_end
            return None
        try:
            if topic.error is not None:
                raise topic.error
            self._check_agrees(topic)
            return self._behind(topic, state, all_of_it=all_of_it)
        except Exception as error:  # noqa: BLE001 - an error of one topic does not stop the others
            self._fail(topic, report, self._tables.problem(topic.table, error))
            return None

    def _behind(self, topic: MovedTopic, state: TopicReport, *, all_of_it: bool) -> Waiting | None:
        """Return the rows that a table lacks; None if the tables have them all."""
        info = topic.info
        ends = self._ends[info.log_id] = self._table_ends.of(topic)
        state.table_end = ends[topic.table].end
        todo = next_range({table: each.end for table, each in ends.items()}, info.durable_end)
        if todo is None:
            self._failed.pop(info.log_id, None)
            return None
        rows, tables = todo
        state.lag_bytes = (info.durable_end - rows.start) * info.bytes_per_row
        now_us = self._clock.now_us()
        waiting = Waiting(info.log_id, rows, info.bytes_per_row, now_us, topic.rules.writer, tables, topic.group)
        if all_of_it:
            return waiting
        return replace(waiting, waits_since_us=self._ages.since_us(info, rows.start))

    def _row(self, topic: MovedTopic, offset: int) -> pa.RecordBatch:
        wanted = OffsetRange(offset, offset + 1)
        try:
            return next(self._range(topic, wanted).rows())
        except (OSError, pa.ArrowException) as error:
            raise FrazilError(f"offset {offset} of {topic.name} cannot be read: {error}") from error

    def _result_layout(self, topic: MovedTopic) -> TableLayout | None:
        """Return the layout of the topic's own table if it does not hold the topic's rows."""
        if topic.statement is None:
            return topic.own_layout
        columns = self._result_columns(topic, topic.statement)
        return TableLayout(columns, topic.rules.partitioning or UNPARTITIONED)

    def _result_columns(self, topic: MovedTopic, statement: Statement) -> pa.Schema:
        """Return the columns of the result, asked of Spark once for each statement and schema."""
        key = (statement, topic.info.stored_schema)
        if key not in self._columns:
            self._columns[key] = self._jobs.result_columns(statement, topic.stored)
        return self._columns[key]

    def _forget_failure(self, log_id: str) -> None:
        self._failed.pop(log_id, None)

    def _fail(self, topic: MovedTopic, report: TickReport, error: FrazilError) -> None:
        """Report a failure, log each reason once, and back off exponentially."""
        report.failures += 1
        state, message, code = report.topics[topic.name], error.message, error.code
        state.error, state.error_code = message, code
        before = self._failed.get(topic.info.log_id)
        if before is None or before.message != message:
            _log.error("%s: %s", topic.name, message)
        times = 1 if before is None else before.times + 1
        rest_us = backoff(times, first=REST_US_MIN, limit=REST_US_MAX)
        if topic.statement is not None:
            rest_us = max(rest_us, STATEMENT_REST_US)
        until_us = self._clock.monotonic_us() + rest_us
        self._failed[topic.info.log_id] = _Failed(message, code, state.table_end, times, until_us)

    def _run(
        self,
        topics: dict[str, MovedTopic],
        tasks: list[list[RangeTask]],
        jobs: list[list[list[RangeTask]]],
        report: TickReport,
    ) -> list[RangeOutput]:
        """Run one job for all tasks, and a separate one for each topic with a statement."""
        wanted = {
            (piece.log_id, table)
            for job in (tasks, *jobs)
            for task in job
            for piece in task
            for table in piece.tables
            if self._tables.remembers(table)  # a derived table is created once there are rows for it
        }
        files = self._files_of(topics, wanted, report)
        ready = {log_id for log_id in topics if all(key in files for key in wanted if key[0] == log_id)}
        inputs = [
            [self._input(topics[piece.log_id], piece, files) for piece in task if piece.log_id in ready]
            for task in tasks
        ]
        with ThreadPoolExecutor(STATEMENTS_AT_ONCE) as pool:
            own = [
                (topic, pool.submit(self._run_statement, topic, job, files[topic.info.log_id, topic.table]))
                for job in jobs
                if (topic := topics[job[0][0].log_id]).info.log_id in ready
            ]
            outputs = run_apart(self._jobs, [task for task in inputs if task])
        outputs = self._created(topics, inputs, outputs, report)
        for topic, statement in own:
            try:
                outputs.append(statement.result())
            except Exception as error:
                if not self._jobs.is_alive():
                    raise
                self._fail(topic, report, self._tables.problem(topic.table, error))
        return outputs

    def _created(
        self,
        topics: dict[str, MovedTopic],
        inputs: Sequence[Sequence[RangeInput]],
        outputs: Sequence[RangeOutput],
        report: TickReport,
    ) -> list[RangeOutput]:
        """Create the tables that tasks had rows for, and run the tasks of their topics again.

        A table that is there after all, and ahead because of a crash, is planned for again.
        """
        missing: dict[str, set[TableName]] = defaultdict(set)
        for output in outputs:
            if output.missing:
                missing[output.log_id].update(output.missing)
        if not missing:
            return list(outputs)
        self._drop([output for output in outputs if output.log_id in missing])
        again: dict[str, dict[TableName, TableFiles]] = {}
        for log_id, tables in missing.items():
            topic = topics[log_id]
            try:
                made = {table: self._table_ends.create(topic, table) for table in sorted(tables)}
                if max(made.values()) <= self._ends[log_id][topic.table].end:
                    again[log_id] = {table: self._tables.files_of(table) for table in made}
                report.is_unfinished = report.is_unfinished or log_id not in again
                self._ends[log_id] |= {table: TableEnd(end, end) for table, end in made.items()}
            except Exception as error:  # noqa: BLE001 - an error of one table does not stop the others
                self._fail(topic, report, self._tables.problem(topic.table, error))
        gone = self._created_tables.check(topics.values(), self._source)
        again = {log_id: files for log_id, files in again.items() if topics[log_id].info.topic not in gone}
        wanted = [
            [_with_targets(one, again[one.source.log_id]) for one in task if one.source.log_id in again]
            for task in inputs
        ]
        done = [output for output in outputs if output.log_id not in missing]
        return [*done, *run_apart(self._jobs, [task for task in wanted if task])]

    def _still_good(
        self, topics: dict[str, MovedTopic], outputs: Sequence[RangeOutput], started_us: int
    ) -> list[RangeOutput]:
        """Return the outputs of logs that are open as when the tick was planned; the others are planned again.

        Files of the same log with other rows may have replaced them meanwhile, from a copy of the folder. And old files
        may have been deleted as orphans.
        """
        now: dict[str, str] = {}
        try:
            now = {} if is_old(self._clock, started_us) else {info.log_id: info.opened for info in self._source.logs()}
        finally:  # also if the owner does not answer
            same = {log_id for log_id, topic in topics.items() if now.get(log_id) == topic.info.opened}
            for output in outputs:
                if output.log_id not in same:
                    self._drop([output])
        return [output for output in outputs if output.log_id in same]

    def _files_of(
        self, topics: dict[str, MovedTopic], wanted: set[tuple[str, TableName]], report: TickReport
    ) -> dict[tuple[str, TableName], TableFiles]:
        """Return by log and table what tasks need to write files; a table that cannot be described fails its topics."""
        found = {}
        for log_id, name in wanted:
            try:
                found[log_id, name] = self._tables.files_of(name)
            except Exception as error:  # noqa: BLE001 - an error of one table does not stop the others
                self._fail(topics[log_id], report, self._tables.problem(name, error))
                self._tables.forget(name)
        return found

    def _drop(self, outputs: Sequence[RangeOutput]) -> None:
        for output in outputs:
            for written in output.written:
                self._tables.drop(written.table, written.files)

    def _run_statement(self, topic: MovedTopic, job: list[list[RangeTask]], files: TableFiles) -> RangeOutput:
        assert topic.statement is not None
        output = self._jobs.run_statement(
            topic.statement,
            [[self._range(topic, piece.range) for piece in task] for task in job],
            topic.stored,
            self._result_columns(topic, topic.statement),
            Target(topic.table, files),
            flush_bytes(topic.rules.writer),
        )
        if output.error is not None:
            return output
        try:
            return replace(output, last=last_row(self._row(topic, output.range.end - 1)))
        except FrazilError as error:
            return replace(output, error=error.message)

    def _input(
        self, topic: MovedTopic, piece: RangeTask, files: Mapping[tuple[str, TableName], TableFiles]
    ) -> RangeInput:
        known = [table for table in piece.tables if (piece.log_id, table) in files]
        targets = tuple(Target(table, files[piece.log_id, table], topic.is_result(table)) for table in known)
        uncreated = tuple(table for table in piece.tables if table not in known)
        gathered = flush_bytes(topic.rules.writer) if topic.derived is None else DERIVED_BYTES
        return RangeInput(self._range(topic, piece.range), targets, gathered, topic.derived, uncreated)

    def _range(self, topic: MovedTopic, wanted: OffsetRange) -> LogRange:
        return topic.log_range(self._settings, wanted, self._source.address, self._source.credentials)

    def _back_off(self, attempt: int) -> None:
        self._wait(delay_seconds(attempt))


def _with_targets(one: RangeInput, files: Mapping[TableName, TableFiles]) -> RangeInput:
    """Return the input with tables that have been created meanwhile."""
    more = tuple(Target(table, each, is_result=True) for table, each in files.items())
    rest = tuple(table for table in one.uncreated if table not in files)
    return replace(one, targets=(*one.targets, *more), uncreated=rest)
