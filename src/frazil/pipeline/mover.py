"""The mover: plan, run a Spark job, commit each table, report; again and again.

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
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from frazil.core.clock import Clock
from frazil.core.errors import FrazilError, RowsMissing
from frazil.core.offsets import OffsetRange
from frazil.core.settings import Settings
from frazil.core.topic_settings import TopicRules
from frazil.lake.checksum import joined, value
from frazil.lake.commit import Committed, Moved
from frazil.lake.files import TableFiles
from frazil.lake.store import TableStore
from frazil.lake.tables import TableName, table_of
from frazil.log.info import LogInfo
from frazil.pipeline.plan import RangeTask, Waiting, flush_bytes, plan
from frazil.pipeline.source import LogSource
from frazil.pipeline.spark import run_tasks, task_count
from frazil.pipeline.transform import Statement, prepare, result_columns, run_statement
from frazil.pipeline.work import LogRange, RangeInput, RangeOutput

COMMITS_AT_ONCE = 8
STATEMENTS_AT_ONCE = 4
REST_US_MIN, REST_US_MAX = 500_000, 30_000_000
STATEMENT_REST_US = 10_000_000
"""A statement that failed is not run again at once: its topic waits for a person, the others for Spark."""

_log = logging.getLogger("frazil.pipeline")


@dataclass(frozen=True, slots=True)
class Move:
    """A range on its way: when its job began, when its files were written, when the table had them."""

    start: int
    end: int
    started_us: int
    written_us: int
    committed_us: int
    snapshot_id: int | None


@dataclass(slots=True)
class TopicReport:
    """How one topic stands after a tick."""

    topic: str
    log_id: str
    table: str
    log_end: int
    table_end: int
    lag_bytes: float
    error: str | None = None
    moved: Move | None = None
    """What this tick has moved."""

    @property
    def lag_rows(self) -> int:
        return self.log_end - self.table_end


@dataclass(slots=True)
class TickReport:
    rows: int = 0
    commits: int = 0
    topics: dict[str, TopicReport] = field(default_factory=dict)
    failures: int = 0

    @property
    def lag_rows(self) -> int:
        return sum(topic.lag_rows for topic in self.topics.values())


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
    table_end: int
    times: int
    until_us: int


class Mover:
    def __init__(
        self,
        settings: Settings,
        source: LogSource,
        tables: TableStore,
        session: SparkSession,
        clock: Clock,
        wait: Callable[[float], None],
    ) -> None:
        self._settings = settings
        self._source = source
        self._tables = tables
        self._session = session
        self._clock = clock
        self._wait = wait
        self._waits_since_us: dict[str, int] = {}
        self._failed: dict[str, _Failed] = {}
        self._columns: dict[tuple[Statement, bytes], pa.Schema] = {}
        self._tasks = task_count(session, settings.pipeline.tasks)
        prepare(session, min(flush_bytes(writer) for writer in settings.writers()))

    def tick(self, *, all_of_it: bool = False) -> TickReport:
        """Move what is due. A topic that fails does not hold up the others: its error is in the report."""
        report = TickReport()
        topics, tasks_max = self._topics(), self._tasks()
        waiting = [
            one for topic in topics.values() if (one := self._waiting(topic, report, all_of_it=all_of_it)) is not None
        ]
        plain = [one for one in waiting if topics[one.log_id].statement is None]
        tasks = plan(plain, self._clock.now_us(), tasks_max, all_of_it=all_of_it)
        own = [one for one in waiting if topics[one.log_id].statement is not None]
        jobs = [plan([one], self._clock.now_us(), tasks_max, all_of_it=all_of_it) for one in own]
        started_us = self._clock.now_us()
        outputs = self._run(topics, tasks, [job for job in jobs if job])
        if outputs:
            self._commit(topics, outputs, report, started_us)
        return report

    def forget(self) -> None:
        """Another may have moved meanwhile: what the tables were is asked anew."""
        self._tables.forget_all()

    def _topics(self) -> dict[str, _Topic]:
        """Those that are to be moved, by log."""
        logs = [_Topic(info, self._settings.of_topic(info.topic)) for info in self._source.logs()]
        return {topic.info.log_id: topic for topic in logs if topic.rules.enabled}

    def _waiting(self, topic: _Topic, report: TickReport, *, all_of_it: bool) -> Waiting | None:
        info = topic.info
        state = report.topics[topic.name] = topic.report(info.first_offset)
        if info.durable_end == info.first_offset == 0:
            return None
        failed = self._failed.get(info.log_id)
        if failed is not None and not all_of_it and self._clock.now_us() < failed.until_us:
            state.error, state.table_end = failed.message, failed.table_end
            return None
        try:
            start = self._start(topic)
        except FrazilError as error:
            self._fail(topic, report, error.message)
            return None
        state.table_end = start
        if start >= info.durable_end:
            self._waits_since_us.pop(info.log_id, None)
            self._failed.pop(info.log_id, None)
            return None
        state.lag_bytes = (info.durable_end - start) * info.bytes_per_row
        since_us = self._waits_since_us.setdefault(info.log_id, self._clock.now_us())
        todo = OffsetRange(start, info.durable_end)
        return Waiting(info.log_id, todo, info.bytes_per_row, since_us, topic.rules.writer)

    def _start(self, topic: _Topic) -> int:
        """Where the table ends, or `RowsMissing` if the log no longer begins there."""
        info, name = topic.info, topic.table
        if topic.statement is None:
            self._tables.ensure(name, topic.stored, topic.rules.partitioning)
        else:
            columns = self._result_columns(topic, topic.statement)
            self._tables.ensure_result(name, columns, topic.rules.partitioning)
        token = self._tables.token(name, info.log_id, table_of(info.topic)[1])
        end = 0 if token is None else token.end
        if end < info.first_offset:
            raise RowsMissing(topic.name, str(name), end, info.first_offset)
        return end

    def _result_columns(self, topic: _Topic, statement: Statement) -> pa.Schema:
        """Asked of Spark once for each statement and form of the rows."""
        key = (statement, topic.info.stored_schema)
        if key not in self._columns:
            self._columns[key] = result_columns(self._session, statement, topic.stored)
        return self._columns[key]

    def _fail(self, topic: _Topic, report: TickReport, message: str) -> None:
        """Told once for each reason, and tried again with growing patience."""
        report.failures += 1
        state = report.topics[topic.name]
        state.error = message
        before = self._failed.get(topic.info.log_id)
        if before is None or before.message != message:
            _log.error("%s: %s", topic.name, message)
        times = 1 if before is None else before.times + 1
        rest_us = min(REST_US_MAX, REST_US_MIN * 2 ** min(times, 10))
        if topic.statement is not None:
            rest_us = max(rest_us, STATEMENT_REST_US)
        self._failed[topic.info.log_id] = _Failed(message, state.table_end, times, self._clock.now_us() + rest_us)

    def _run(
        self, topics: dict[str, _Topic], tasks: list[list[RangeTask]], jobs: list[list[list[RangeTask]]]
    ) -> list[RangeOutput]:
        """One job for all the tasks, and beside it one for each topic with a statement."""
        pieces = [piece for packed in (tasks, *jobs) for task in packed for piece in task]
        names = {topics[piece.log_id].table for piece in pieces}
        tables = {name: self._tables.files_of(name) for name in names}
        with ThreadPoolExecutor(STATEMENTS_AT_ONCE) as pool:
            own = [pool.submit(self._run_statement, topics[job[0][0].log_id], job, tables) for job in jobs]
            inputs = [[self._input(topics[piece.log_id], piece, tables) for piece in task] for task in tasks]
            outputs = run_tasks(self._session, inputs)
        return [*outputs, *(statement.result() for statement in own)]

    def _run_statement(
        self, topic: _Topic, job: list[list[RangeTask]], tables: dict[TableName, TableFiles]
    ) -> RangeOutput:
        assert topic.statement is not None
        return run_statement(
            self._session,
            topic.statement,
            [[self._range(topic, piece) for piece in task] for task in job],
            topic.stored,
            self._result_columns(topic, topic.statement),
            tables[topic.table],
            flush_bytes(topic.rules.writer),
        )

    def _input(self, topic: _Topic, piece: RangeTask, tables: dict[TableName, TableFiles]) -> RangeInput:
        return RangeInput(self._range(topic, piece), tables[topic.table], flush_bytes(topic.rules.writer))

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
        )

    def _commit(
        self, topics: dict[str, _Topic], outputs: Sequence[RangeOutput], report: TickReport, started_us: int
    ) -> None:
        written_us = self._clock.now_us()
        moves: dict[TableName, list[Moved]] = defaultdict(list)
        by_log: dict[str, list[RangeOutput]] = defaultdict(list)
        for output in outputs:
            by_log[output.log_id].append(output)
        for log_id, pieces in by_log.items():
            topic = topics[log_id]
            whole, rest, error = _whole_part(pieces)
            if error is not None:
                self._fail(topic, report, error)
                self._tables.drop(topic.table, [file for piece in rest for file in piece.files])
            if whole:
                moves[topic.table].append(_joined(whole, table_of(topic.info.topic)[1]))
        with ThreadPoolExecutor(COMMITS_AT_ONCE) as pool:
            commits = {name: pool.submit(self._commit_table, name, each) for name, each in moves.items()}
        for name, commit in commits.items():
            try:
                self._note(topics, *commit.result(), report, started_us, written_us)
            except FrazilError as error:
                self._tables.forget(name)
                for move in moves[name]:
                    topic = topics[move.log_id]
                    self._fail(topic, report, error.message)

    def _commit_table(self, name: TableName, moves: Sequence[Moved]) -> tuple[Committed, int]:
        """And when it was done."""
        return self._tables.commit(name, moves, str(uuid.uuid4()), self._back_off), self._clock.now_us()

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
            self._waits_since_us.pop(move.log_id, None)
            self._failed.pop(move.log_id, None)
            state = report.topics[topic.name]
            state.table_end = move.end
            state.moved = Move(move.start, move.end, started_us, written_us, committed_us, committed.snapshot_id)
            state.lag_bytes = (state.log_end - move.end) * topic.info.bytes_per_row


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
    )
