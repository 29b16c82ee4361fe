"""The mover: plan, run a job, commit each table, report; repeatedly.

One job serves all topics of a tick, except those with a statement, which get their own job. A topic may
have derived tables beside its own, see `outputs`: they are committed first.

The table is the checkpoint. State that the mover caches between ticks only saves queries; the pinned commit refuses
anything based on stale state.
"""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa

from frazil.core.backoff import backoff
from frazil.core.clock import Clock
from frazil.core.errors import FrazilError, RowsMissing, TableAhead, TableRefused
from frazil.core.offsets import OffsetRange
from frazil.core.settings import Settings
from frazil.lake.commit.commit import Committed, Moved, delay_seconds
from frazil.lake.files.writer import TableFiles
from frazil.lake.tables.last_row import last_row
from frazil.lake.tables.schema import TableName
from frazil.lake.tables.store import TableStore
from frazil.lake.tables.token import Token
from frazil.log.info import LogInfo
from frazil.node.movers.log_source import LogSource
from frazil.node.movers.tick_report import Move, TickReport, TopicReport
from frazil.pipeline.move.isolation import run_apart
from frazil.pipeline.move.jobs import JobRunner
from frazil.pipeline.move.joining import moves_of, whole_part
from frazil.pipeline.move.moved_topic import MovedTopic
from frazil.pipeline.move.outputs import DerivedOf, Target, next_range
from frazil.pipeline.move.plan import RangeTask, Waiting, flush_bytes, is_due, plan
from frazil.pipeline.move.row_ages import RowAges, append_time_reader
from frazil.pipeline.move.tasks import LogRange, RangeInput, RangeOutput
from frazil.pipeline.transform.statement import Statement

COMMITS_AT_ONCE = 8
STATEMENTS_AT_ONCE = 4
REST_US_MIN, REST_US_MAX = 1_000_000, 30_000_000
STATEMENT_REST_US = 10_000_000
"""A failed statement is not retried at once: its topic waits for a fix, the others for Spark."""
FILES_US_MAX = 12 * 3_600_000_000
"""Half the age at which a file in no table may count as an orphan. A mover may be paused for longer."""

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
        derived_of: DerivedOf = lambda _: None,
    ) -> None:
        self._settings = settings
        self._source = source
        self._tables = tables
        self._jobs = jobs
        self._clock = clock
        self._wait = wait
        self._derived_of = derived_of
        self._ages = RowAges(clock, append_time_reader(lambda: (source.address, source.credentials)))
        self._failed: dict[str, _Failed] = {}
        self._columns: dict[tuple[Statement, bytes], pa.Schema] = {}
        self._sharing: dict[TableName, list[MovedTopic]] = {}
        self._continues: dict[tuple[str, TableName], tuple[str, str]] = {}
        """By log and table: the log's opening, and the last move that its rows are known to continue."""

    def tick(self, *, all_of_it: bool = False) -> TickReport:
        """Move what is due. A topic that fails does not delay the others: its error is in the report."""
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
        """Drop cached tables: another mover may have committed meanwhile."""
        self._tables.forget_all()

    def _topics(self) -> dict[str, MovedTopic]:
        """Return the topics to move, by log."""
        logs = [self._topic(info) for info in self._source.logs()]
        moved = {topic.info.log_id: topic for topic in logs if topic.rules.enabled}
        self._ages.listed(topic.info for topic in moved.values())
        self._sharing = defaultdict(list)
        for topic in moved.values():
            self._sharing[topic.table].append(topic)
        return moved

    def _topic(self, info: LogInfo) -> MovedTopic:
        rules = self._settings.of_topic(info.topic)
        return MovedTopic(info, rules, self._derived_of(info) if rules.sql is None else None)

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
        except Exception as error:  # noqa: BLE001 - an error of one topic does not stop the others
            self._fail(topic, report, self._tables.problem(topic.table, error))
            return None

    def _behind(self, topic: MovedTopic, state: TopicReport, *, all_of_it: bool) -> Waiting | None:
        """Return the rows that a table lacks; None if the tables have them all."""
        info = topic.info
        ends = {table: self._start_now(topic, table) for table in topic.tables}
        state.table_end = min(ends.values())
        todo = next_range(ends, info.durable_end)
        if todo is None:
            self._failed.pop(info.log_id, None)
            return None
        rows, tables = todo
        state.lag_bytes = (info.durable_end - rows.start) * info.bytes_per_row
        now_us = self._clock.now_us()
        waiting = Waiting(info.log_id, rows, info.bytes_per_row, now_us, topic.rules.writer, tables)
        if all_of_it or is_due(waiting, now_us):
            return waiting
        return replace(waiting, waits_since_us=self._ages.since_us(info, rows.start))

    def _start_now(self, topic: MovedTopic, table: TableName) -> int:
        """Return the end of a table; reload it before refusing it, as it may have been dropped, renamed or accepted."""
        if self._tables.remembers(table):
            try:
                return self._start(topic, table)
            except TableRefused:
                self._tables.forget(table)
        try:
            return self._start(topic, table)
        except Exception:
            self._tables.forget(table)
            raise

    def _start(self, topic: MovedTopic, table: TableName) -> int:
        """Return a table's end; raises `RowsMissing` if the log begins later, `TableAhead` if the log is behind."""
        info = topic.info
        if table in topic.derived_tables:
            self._tables.ensure_result(table, topic.derived_tables[table])
        elif topic.statement is None:
            self._tables.ensure(table, topic.stored, topic.rules.partitioning)
        else:
            columns = self._result_columns(topic, topic.statement)
            self._tables.ensure_result(table, columns, topic.rules.partitioning)
        if info.former:
            former = info.former[-1]
            self._tables.hand_over(table, former.log_id, former.table_end, info.log_id, self._back_off)
        token = self._tables.token(table, info.log_id, topic.partition)
        end = 0 if token is None else token.end
        if end < info.first_offset:
            raise RowsMissing(topic.name, str(table), end, info.first_offset)
        self._check_continues(topic, table, token or Token(0, ""))
        return end

    def _check_continues(self, topic: MovedTopic, table: TableName, token: Token) -> None:
        """Check that the last moved row is still in the log, unless retention has removed it.

        A log never goes back while it is open, but another mover may have moved a copy of it. So one check for each
        opening and each move is enough.
        """
        info, end, known = topic.info, token.end, (topic.info.opened, token.move_id)
        key = (info.log_id, table)
        if end > info.durable_end:
            self._continues.pop(key, None)
            raise TableAhead(topic.name, str(table), end, info.durable_end)
        if end <= info.first_offset or (info.opened and self._continues.get(key) == known):
            return
        row = self._row(topic, end - 1)
        if not self._tables.is_last_row(table, info.log_id, topic.partition, row):
            raise TableAhead(topic.name, str(table), end, info.durable_end)
        self._continues[key] = known

    def _row(self, topic: MovedTopic, offset: int) -> pa.RecordBatch:
        wanted = OffsetRange(offset, offset + 1)
        try:
            return next(self._range(topic, wanted).rows())
        except (OSError, pa.ArrowException) as error:
            raise FrazilError(f"offset {offset} of {topic.name} cannot be read: {error}") from error

    def _result_columns(self, topic: MovedTopic, statement: Statement) -> pa.Schema:
        """Return the columns of the result, asked of Spark once for each statement and schema."""
        key = (statement, topic.info.stored_schema)
        if key not in self._columns:
            self._columns[key] = self._jobs.result_columns(statement, topic.stored)
        return self._columns[key]

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
            (piece.log_id, table) for job in (tasks, *jobs) for task in job for piece in task for table in piece.tables
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
        for topic, statement in own:
            try:
                outputs.append(statement.result())
            except Exception as error:
                if not self._jobs.is_alive():
                    raise
                self._fail(topic, report, self._tables.problem(topic.table, error))
        return outputs

    def _still_good(
        self, topics: dict[str, MovedTopic], outputs: Sequence[RangeOutput], started_us: int
    ) -> list[RangeOutput]:
        """Return the outputs of logs that are open as when the tick was planned; the others are planned again.

        Files of the same log with other rows may have replaced them meanwhile, from a copy of the folder. And old files
        may have been deleted as orphans.
        """
        now: dict[str, str] = {}
        try:
            now = {} if self._is_old(started_us) else {info.log_id: info.opened for info in self._source.logs()}
        finally:  # also if the owner does not answer
            same = {log_id for log_id, topic in topics.items() if now.get(log_id) == topic.info.opened}
            for output in outputs:
                if output.log_id not in same:
                    self._drop([output])
        return [output for output in outputs if output.log_id in same]

    def _is_old(self, started_us: int) -> bool:
        return self._clock.now_us() - started_us > FILES_US_MAX

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
        targets = tuple(
            Target(table, files[piece.log_id, table], is_derived=table != topic.table) for table in piece.tables
        )  # fmt: skip
        return RangeInput(self._range(topic, piece.range), targets, flush_bytes(topic.rules.writer), topic.derived)

    def _range(self, topic: MovedTopic, wanted: OffsetRange) -> LogRange:
        return topic.log_range(wanted, self._source.address, self._source.credentials)

    def _commit(
        self, topics: dict[str, MovedTopic], outputs: Sequence[RangeOutput], report: TickReport, started_us: int
    ) -> None:
        """Commit the derived tables first: a topic's own table gets a range only after all of them."""
        written_us = self._clock.now_us()
        derived: dict[TableName, list[Moved]] = defaultdict(list)
        own: dict[TableName, list[Moved]] = defaultdict(list)
        by_log: dict[str, list[RangeOutput]] = defaultdict(list)
        failed: set[TableName] = set()
        for output in outputs:
            by_log[output.log_id].append(output)
        for log_id, pieces in by_log.items():
            topic = topics[log_id]
            whole, rest, error = whole_part(pieces)
            if error is not None:
                self._fail(topic, report, FrazilError(error))
                self._drop(rest)
                failed |= set(topic.tables)
            for table, move in (moves_of(whole, topic.partition) if whole else {}).items():
                (own if table == topic.table else derived)[table].append(move)
        lacking = self._commit_tables(topics, derived, report, started_us, written_us)
        for table, moves in own.items():
            for move in [each for each in moves if each.log_id in lacking]:
                moves.remove(move)
                self._tables.drop(table, move.files)
        self._commit_tables(topics, own, report, started_us, written_us)
        for table in failed:
            self._tables.forget(table)  # its credentials may have expired: it is reloaded for the next attempt

    def _commit_tables(
        self,
        topics: dict[str, MovedTopic],
        moves: Mapping[TableName, Sequence[Moved]],
        report: TickReport,
        started_us: int,
        written_us: int,
    ) -> set[str]:
        """Commit each table once, several at a time; returns the logs that a table still lacks."""
        lacking: set[str] = set()
        moves = {name: each for name, each in moves.items() if each}
        if not moves:
            return lacking
        with ThreadPoolExecutor(COMMITS_AT_ONCE) as pool:
            commits = {name: pool.submit(self._commit_table, name, each, started_us) for name, each in moves.items()}
        for name, commit in commits.items():
            try:
                committed, committed_us = commit.result()
            except Exception as error:  # noqa: BLE001 - an error of one table does not stop the others
                lacking |= {move.log_id for move in moves[name]}
                for move in moves[name]:
                    self._fail(topics[move.log_id], report, self._tables.problem(name, error))
                self._tables.forget(name)  # its credentials may have expired: it is reloaded for the next attempt
                continue
            lacking |= {move.log_id for move in committed.others}
            self._note(topics, name, committed, report, (started_us, written_us, committed_us))
        return lacking

    def _commit_table(self, name: TableName, moves: Sequence[Moved], started_us: int) -> tuple[Committed, int]:
        """Return the result and the time of the commit."""

        def wait(attempt: int) -> None:
            self._back_off(attempt)
            if self._is_old(started_us):
                raise FrazilError(f"the files for {name} are too old to be committed, and are written again")

        return self._tables.commit(name, moves, str(uuid.uuid4()), wait), self._clock.now_us()

    def _back_off(self, attempt: int) -> None:
        self._wait(delay_seconds(attempt))

    def _note(
        self,
        topics: dict[str, MovedTopic],
        table: TableName,
        committed: Committed,
        report: TickReport,
        times_us: tuple[int, int, int],
    ) -> None:
        report.commits += 1 if committed.mine else 0
        for move in committed.mine:
            topic = topics[move.log_id]
            if table != topic.table:
                continue  # the topic's progress is that of its own table, which is committed last
            report.rows += move.rows
            self._failed.pop(move.log_id, None)
            state = report.topics[topic.name]
            state.table_end = move.end
            state.moved = Move(move.start, move.end, *times_us, committed.snapshot_id)
            state.lag_bytes = (state.log_end - move.end) * topic.info.bytes_per_row
        for move in committed.others:
            self._note_refusal(topics[move.log_id], table, report)

    def _note_refusal(self, topic: MovedTopic, table: TableName, report: TickReport) -> None:
        """Plan an uncommitted move again, unless the current table refuses the log."""
        try:
            self._tables.token(table, topic.info.log_id, topic.partition)
        except FrazilError as error:
            self._fail(topic, report, error)
