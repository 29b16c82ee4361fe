"""The mover: plan, run a job, commit each table, report; again and again.

One job serves all topics of a tick, but for those with a statement of their own, which get a job each.

The table is the checkpoint. What the mover remembers between ticks only saves it from asking; whatever it
believes wrongly is refused by the pinned commit.
"""

from __future__ import annotations

import functools
import itertools
import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from frazil.core.clock import Clock
from frazil.core.errors import FrazilError, RowsMissing, TableAhead, TableRefused
from frazil.core.offsets import OffsetRange
from frazil.core.settings import Settings
from frazil.core.topic_settings import TopicRules
from frazil.lake.checksum import joined, value
from frazil.lake.commit import Committed, Moved
from frazil.lake.files import TableFiles
from frazil.lake.last_row import last_row
from frazil.lake.store import TableStore
from frazil.lake.tables import TableName, table_of
from frazil.lake.token import Token
from frazil.log.info import LogInfo
from frazil.pipeline.isolation import run_apart
from frazil.pipeline.jobs import JobRunner
from frazil.pipeline.plan import RangeTask, Waiting, flush_bytes, is_due, plan
from frazil.pipeline.row_ages import RowAges, append_time_reader
from frazil.pipeline.source import LogSource
from frazil.pipeline.spark_jobs import SparkJobs
from frazil.pipeline.statement import Statement
from frazil.pipeline.tick_report import Move, TickReport, TopicReport
from frazil.pipeline.work import LogRange, RangeInput, RangeOutput

COMMITS_AT_ONCE = 8
STATEMENTS_AT_ONCE = 4
REST_US_MIN, REST_US_MAX = 500_000, 30_000_000
STATEMENT_REST_US = 10_000_000
"""A statement that failed is not run again at once: its topic waits for a person, the others for Spark."""
FILES_US_MAX = 12 * 3_600_000_000
"""Half the age at which a file that is in no table may be taken for an orphan. A mover may be stopped for longer."""

_log = logging.getLogger("frazil.pipeline")


@dataclass(frozen=True, slots=True)
class _Topic:
    """A log, and what the settings say of its topic."""

    info: LogInfo
    rules: TopicRules

    @property
    def name(self) -> str:
        return str(self.info.topic)

    @property
    def table(self) -> TableName:
        return table_of(self.info.topic)[0]

    @property
    def stored(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.info.stored_schema))

    @property
    def statement(self) -> Statement | None:
        return None if self.rules.sql is None else Statement(self.rules.setting("sql"), self.rules.sql)

    def report(self, table_end: int) -> TopicReport:
        return TopicReport(self.name, self.info.log_id, str(self.table), self.info.durable_end, table_end, 0.0)


@dataclass(frozen=True, slots=True)
class _Failed:
    """How a topic failed, how often in a row, and until when it rests."""

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
        jobs: JobRunner | SparkSession,
        clock: Clock,
        wait: Callable[[float], None],
    ) -> None:
        self._settings = settings
        self._source = source
        self._tables = tables
        self._jobs = jobs if isinstance(jobs, JobRunner) else SparkJobs(jobs, settings)
        self._clock = clock
        self._wait = wait
        self._ages = RowAges(clock, append_time_reader(lambda: source.address))
        self._failed: dict[str, _Failed] = {}
        self._columns: dict[tuple[Statement, bytes], pa.Schema] = {}
        self._sharing: dict[TableName, list[_Topic]] = {}
        self._continues: dict[str, tuple[str, str]] = {}
        """By log: its opening, and the move of the table that its rows are known to go on from."""

    def tick(self, *, all_of_it: bool = False) -> TickReport:
        """Move what is due. A topic that fails does not hold up the others: its error is in the report."""
        report = TickReport()
        topics, tasks_max = self._topics(), self._jobs.tasks_max()
        waiting = [
            one for topic in topics.values() if (one := self._waiting(topic, report, all_of_it=all_of_it)) is not None
        ]
        plain = [one for one in waiting if topics[one.log_id].statement is None]
        tasks = plan(plain, self._clock.now_us(), tasks_max, all_of_it=all_of_it)
        own = [one for one in waiting if topics[one.log_id].statement is not None]
        jobs = [plan([one], self._clock.now_us(), tasks_max, all_of_it=all_of_it) for one in own]
        started_us = self._clock.now_us()
        outputs = self._run(topics, tasks, [job for job in jobs if job], report)
        if outputs and (outputs := self._still_good(topics, outputs, started_us)):
            self._commit(topics, outputs, report, started_us)
        return report

    def forget(self) -> None:
        """Another may have moved meanwhile: what the tables were is asked anew."""
        self._tables.forget_all()

    def _topics(self) -> dict[str, _Topic]:
        """Those that are to be moved, by log."""
        logs = [_Topic(info, self._settings.of_topic(info.topic)) for info in self._source.logs()]
        moved = {topic.info.log_id: topic for topic in logs if topic.rules.enabled}
        self._ages.listed(topic.info for topic in moved.values())
        self._sharing = defaultdict(list)
        for topic in moved.values():
            self._sharing[topic.table].append(topic)
        return moved

    def _check_agrees(self, topic: _Topic) -> None:
        """Rows as they are and results of a statement are not for one table, which partitions of a topic share."""
        for other in self._sharing[topic.table]:
            if (other.statement is None) != (topic.statement is None):
                without, by = sorted((topic, other), key=lambda one: one.statement is not None)
                raise TableRefused(
                    f"{topic.table} would get rows of {without.name} as they are and results for {by.name}: set "
                    f"{by.rules.setting('sql')} for all partitions of the topic, or for none",
                    table=str(topic.table),
                )

    def _waiting(self, topic: _Topic, report: TickReport, *, all_of_it: bool) -> Waiting | None:
        info = topic.info
        state = report.topics[topic.name] = topic.report(info.first_offset)
        if info.durable_end == info.first_offset == 0:
            return None
        failed = self._failed.get(info.log_id)
        if failed is not None and not all_of_it and self._clock.monotonic_us() < failed.until_us:
            state.error, state.error_code, state.table_end = failed.message, failed.code, failed.table_end
            return None
        try:
            self._check_agrees(topic)
            return self._behind(topic, state, all_of_it=all_of_it)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one topic is its own
            self._fail(topic, report, self._tables.problem(topic.table, error))
            return None

    def _behind(self, topic: _Topic, state: TopicReport, *, all_of_it: bool) -> Waiting | None:
        """The rows that the table lacks; None if it has them all."""
        info = topic.info
        state.table_end = start = self._start_now(topic)
        if start >= info.durable_end:
            self._failed.pop(info.log_id, None)
            return None
        state.lag_bytes = (info.durable_end - start) * info.bytes_per_row
        now_us, todo = self._clock.now_us(), OffsetRange(start, info.durable_end)
        waiting = Waiting(info.log_id, todo, info.bytes_per_row, now_us, topic.rules.writer)
        if all_of_it or is_due(waiting, now_us):
            return waiting
        return replace(waiting, waits_since_us=self._ages.since_us(info, start))

    def _start_now(self, topic: _Topic) -> int:
        """A table is refused only as it is now: one that is remembered may have been dropped, renamed or accepted."""
        if self._tables.remembers(topic.table):
            try:
                return self._start(topic)
            except TableRefused:
                self._tables.forget(topic.table)
        try:
            return self._start(topic)
        except Exception:
            self._tables.forget(topic.table)
            raise

    def _start(self, topic: _Topic) -> int:
        """Where the table ends: `RowsMissing` if the log begins later, `TableAhead` if it is not the log's past."""
        info, name = topic.info, topic.table
        if topic.statement is None:
            self._tables.ensure(name, topic.stored, topic.rules.partitioning)
        else:
            columns = self._result_columns(topic, topic.statement)
            self._tables.ensure_result(name, columns, topic.rules.partitioning)
        if info.former:
            former = info.former[-1]
            self._tables.hand_over(name, former.log_id, former.table_end, info.log_id, self._back_off)
        token = self._tables.token(name, info.log_id, table_of(info.topic)[1])
        end = 0 if token is None else token.end
        if end < info.first_offset:
            raise RowsMissing(topic.name, str(name), end, info.first_offset)
        self._check_continues(topic, token or Token(0, ""))
        return end

    def _check_continues(self, topic: _Topic, token: Token) -> None:
        """The last row that was moved must still be in the log, where retention has not removed it.

        A log never goes back while it is open, but a copy of it may be moved to the table by another mover. So one look
        is enough for each time that it was opened and each move.
        """
        info, end, known = topic.info, token.end, (topic.info.opened, token.move_id)
        if end > info.durable_end:
            self._continues.pop(info.log_id, None)
            raise TableAhead(topic.name, str(topic.table), end, info.durable_end)
        if end <= info.first_offset or (info.opened and self._continues.get(info.log_id) == known):
            return
        row = self._row(topic, end - 1)
        if not self._tables.is_last_row(topic.table, info.log_id, table_of(info.topic)[1], row):
            raise TableAhead(topic.name, str(topic.table), end, info.durable_end)
        self._continues[info.log_id] = known

    def _row(self, topic: _Topic, offset: int) -> pa.RecordBatch:
        wanted = OffsetRange(offset, offset + 1)
        try:
            return next(self._range(topic, RangeTask(topic.info.log_id, wanted, 0.0)).rows())
        except (OSError, pa.ArrowException) as error:
            raise FrazilError(f"offset {offset} of {topic.name} cannot be read: {error}") from error

    def _result_columns(self, topic: _Topic, statement: Statement) -> pa.Schema:
        """Asked of Spark once for each statement and form of the rows."""
        key = (statement, topic.info.stored_schema)
        if key not in self._columns:
            self._columns[key] = self._jobs.result_columns(statement, topic.stored)
        return self._columns[key]

    def _fail(self, topic: _Topic, report: TickReport, error: FrazilError) -> None:
        """Told once for each reason, and tried again with growing patience."""
        report.failures += 1
        state, message, code = report.topics[topic.name], error.message, error.code
        state.error, state.error_code = message, code
        before = self._failed.get(topic.info.log_id)
        if before is None or before.message != message:
            _log.error("%s: %s", topic.name, message)
        times = 1 if before is None else before.times + 1
        rest_us = min(REST_US_MAX, REST_US_MIN * 2 ** min(times, 10))
        if topic.statement is not None:
            rest_us = max(rest_us, STATEMENT_REST_US)
        until_us = self._clock.monotonic_us() + rest_us
        self._failed[topic.info.log_id] = _Failed(message, code, state.table_end, times, until_us)

    def _run(
        self,
        topics: dict[str, _Topic],
        tasks: list[list[RangeTask]],
        jobs: list[list[list[RangeTask]]],
        report: TickReport,
    ) -> list[RangeOutput]:
        """One job for all the tasks, and beside it one for each topic with a statement."""
        tables = self._files_of(
            topics, {piece.log_id for job in (tasks, *jobs) for task in job for piece in task}, report
        )
        inputs = [
            [self._input(topics[piece.log_id], piece, tables) for piece in task if piece.log_id in tables]
            for task in tasks
        ]
        with ThreadPoolExecutor(STATEMENTS_AT_ONCE) as pool:
            own = [
                (topics[log_id], pool.submit(self._run_statement, topics[log_id], job, tables[log_id]))
                for job in jobs
                if (log_id := job[0][0].log_id) in tables
            ]
            outputs = run_apart(self._jobs, [task for task in inputs if task])
        for topic, statement in own:
            try:
                outputs.append(statement.result())
            except Exception as error:
                if not self._jobs.is_alive():
                    raise
                self._fail(topic, report, self._tables.problem(topic.table, error))
        return outputs

    def _still_good(
        self, topics: dict[str, _Topic], outputs: Sequence[RangeOutput], started_us: int
    ) -> list[RangeOutput]:
        """The outputs of logs that are open as they were when the tick was planned; the others are planned anew.

        Files of the same log with other rows may have taken their place meanwhile, from a copy of the folder. And what
        was written long ago may have been deleted as an orphan.
        """
        now: dict[str, str] = {}
        try:
            now = {} if self._is_old(started_us) else {info.log_id: info.opened for info in self._source.logs()}
        finally:  # also if the owner does not answer
            same = {log_id for log_id, topic in topics.items() if now.get(log_id) == topic.info.opened}
            for output in outputs:
                if output.log_id not in same:
                    self._tables.drop(topics[output.log_id].table, output.files)
        return [output for output in outputs if output.log_id in same]

    def _is_old(self, started_us: int) -> bool:
        return self._clock.now_us() - started_us > FILES_US_MAX

    def _files_of(self, topics: dict[str, _Topic], log_ids: set[str], report: TickReport) -> dict[str, TableFiles]:
        """By log, what tasks need to write its files; a table that can't be described is its topics' error."""
        found = {}
        for log_id in log_ids:
            name = topics[log_id].table
            try:
                found[log_id] = self._tables.files_of(name)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one table is its own
                self._fail(topics[log_id], report, self._tables.problem(name, error))
                self._tables.forget(name)
        return found

    def _run_statement(self, topic: _Topic, job: list[list[RangeTask]], files: TableFiles) -> RangeOutput:
        assert topic.statement is not None
        output = self._jobs.run_statement(
            topic.statement,
            [[self._range(topic, piece) for piece in task] for task in job],
            topic.stored,
            self._result_columns(topic, topic.statement),
            files,
            flush_bytes(topic.rules.writer),
        )
        if output.error is not None:
            return output
        try:
            return replace(output, last=last_row(self._row(topic, output.range.end - 1)))
        except FrazilError as error:
            return replace(output, error=error.message)

    def _input(self, topic: _Topic, piece: RangeTask, tables: dict[str, TableFiles]) -> RangeInput:
        return RangeInput(self._range(topic, piece), tables[piece.log_id], flush_bytes(topic.rules.writer))

    def _range(self, topic: _Topic, piece: RangeTask) -> LogRange:
        info = topic.info
        return LogRange(
            topic.name,
            info.log_id,
            table_of(info.topic)[1],
            piece.range,
            tuple(_files_of(info, piece.range)),
            info.stored_schema,
            self._source.address,
            info.folder,
        )

    def _commit(
        self, topics: dict[str, _Topic], outputs: Sequence[RangeOutput], report: TickReport, started_us: int
    ) -> None:
        written_us = self._clock.now_us()
        moves: dict[TableName, list[Moved]] = defaultdict(list)
        by_log: dict[str, list[RangeOutput]] = defaultdict(list)
        failed: set[TableName] = set()
        for output in outputs:
            by_log[output.log_id].append(output)
        for log_id, pieces in by_log.items():
            topic = topics[log_id]
            whole, rest, error = _whole_part(pieces)
            if error is not None:
                self._fail(topic, report, FrazilError(error))
                self._tables.drop(topic.table, [file for piece in rest for file in piece.files])
                failed.add(topic.table)
            if whole:
                moves[topic.table].append(_joined(whole, table_of(topic.info.topic)[1]))
        with ThreadPoolExecutor(COMMITS_AT_ONCE) as pool:
            commits = {name: pool.submit(self._commit_table, name, each, started_us) for name, each in moves.items()}
        for name, commit in commits.items():
            try:
                self._note(topics, *commit.result(), report, started_us, written_us)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one table is its own
                failed.add(name)
                for move in moves[name]:
                    self._fail(topics[move.log_id], report, self._tables.problem(name, error))
        for name in failed:
            self._tables.forget(name)  # its credentials may have expired: it is loaded anew for the next try

    def _commit_table(self, name: TableName, moves: Sequence[Moved], started_us: int) -> tuple[Committed, int]:
        """And when it was done."""

        def wait(attempt: int) -> None:
            self._back_off(attempt)
            if self._is_old(started_us):
                raise FrazilError(f"the files for {name} were written too long ago to be committed; they are made anew")

        return self._tables.commit(name, moves, str(uuid.uuid4()), wait), self._clock.now_us()

    def _back_off(self, attempt: int) -> None:
        self._wait(min(5.0, 0.05 * 2**attempt))

    def _note(
        self,
        topics: dict[str, _Topic],
        committed: Committed,
        committed_us: int,
        report: TickReport,
        started_us: int,
        written_us: int,
    ) -> None:
        report.commits += 1 if committed.mine else 0
        for move in committed.mine:
            topic = topics[move.log_id]
            report.rows += move.rows
            self._failed.pop(move.log_id, None)
            state = report.topics[topic.name]
            state.table_end = move.end
            state.moved = Move(move.start, move.end, started_us, written_us, committed_us, committed.snapshot_id)
            state.lag_bytes = (state.log_end - move.end) * topic.info.bytes_per_row
        for move in committed.others:
            self._note_refusal(topics[move.log_id], report)

    def _note_refusal(self, topic: _Topic, report: TickReport) -> None:
        """A move that was not committed is planned anew, unless the table as it is now refuses the log."""
        try:
            self._tables.token(topic.table, topic.info.log_id, table_of(topic.info.topic)[1])
        except FrazilError as error:
            self._fail(topic, report, error)


def _files_of(info: LogInfo, wanted: OffsetRange) -> list[tuple[int, Path]]:
    """The segments that a range touches."""
    found = []
    for index, (base, path) in enumerate(info.files):
        end = info.files[index + 1][0] if index + 1 < len(info.files) else wanted.end
        if base < wanted.end and end > wanted.start:
            found.append((base, path))
    return found


def _whole_part(pieces: Sequence[RangeOutput]) -> tuple[list[RangeOutput], list[RangeOutput], str | None]:
    """The pieces before the first that failed, those behind it, and why it did: only what joins can be committed."""
    ordered = sorted(pieces, key=lambda piece: piece.range.start)
    for at, piece in enumerate(ordered):
        if piece.error is not None:
            return ordered[:at], ordered[at + 1 :], piece.error
    return ordered, [], None


def _joined(outputs: Sequence[RangeOutput], partition: int) -> Moved:
    """The pieces of one log as one move: they were cut from one range, so they join."""
    ordered = sorted(outputs, key=lambda output: output.range.start)
    for left, right in itertools.pairwise(ordered):
        assert left.range.end == right.range.start
    return Moved(
        ordered[0].log_id,
        ordered[0].range.start,
        ordered[-1].range.end,
        tuple(file for output in ordered for file in output.files),
        sum(output.rows for output in ordered),
        ",".join(f"{output.range.start}-{output.range.end}:{value(output.streams):08x}" for output in ordered),
        partition,
        functools.reduce(joined, (output.streams for output in ordered)),
        transformed=any(output.transformed for output in ordered),
        last=ordered[-1].last,
    )
