"""The mover: plan, run one Spark job, commit each table, report; again and again.

The table is the checkpoint. What the mover remembers between ticks only saves it from asking; whatever it
believes wrongly is refused by the pinned commit.
"""

from __future__ import annotations

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
from frazil.lake.commit import Committed, Moved
from frazil.lake.store import TableStore
from frazil.lake.tables import TableName, table_of
from frazil.log.info import LogInfo
from frazil.pipeline.plan import RangeTask, Waiting, plan
from frazil.pipeline.source import LogSource
from frazil.pipeline.spark import run_tasks, task_count
from frazil.pipeline.work import RangeInput, RangeOutput

COMMITS_AT_ONCE = 8

_log = logging.getLogger("frazil.pipeline")


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

    @property
    def lag_rows(self) -> int:
        return self.log_end - self.table_end


@dataclass(slots=True)
class TickReport:
    rows: int = 0
    commits: int = 0
    topics: dict[str, TopicReport] = field(default_factory=dict)

    @property
    def lag_rows(self) -> int:
        return sum(topic.lag_rows for topic in self.topics.values())


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
        self._tasks = task_count(session, settings.pipeline.tasks)

    def tick(self, *, all_of_it: bool = False) -> TickReport:
        """Move what is due. A topic that fails does not hold up the others: its error is in the report."""
        report = TickReport()
        infos = {info.log_id: info for info in self._source.logs()}
        waiting = [one for info in infos.values() if (one := self._waiting(info, report)) is not None]
        tasks = plan(waiting, self._settings.writer, self._clock.now_us(), self._tasks(), all_of_it=all_of_it)
        if not tasks:
            return report
        inputs = [[self._input(infos[piece.log_id], piece) for piece in task] for task in tasks]
        outputs = run_tasks(self._session, inputs)
        self._commit(infos, outputs, report)
        return report

    def forget(self) -> None:
        """Another may have moved meanwhile: what the tables were is asked anew."""
        self._tables.forget_all()

    def _waiting(self, info: LogInfo, report: TickReport) -> Waiting | None:
        name, _ = table_of(info.topic)
        state = TopicReport(str(info.topic), info.log_id, str(name), info.durable_end, info.first_offset, 0.0)
        report.topics[str(info.topic)] = state
        if info.durable_end == info.first_offset == 0:
            return None
        try:
            start = self._start(info, name)
        except FrazilError as error:
            state.error = error.message
            _log.error("%s: %s", info.topic, error)
            return None
        state.table_end = start
        if start >= info.durable_end:
            self._waits_since_us.pop(info.log_id, None)
            return None
        state.lag_bytes = (info.durable_end - start) * info.bytes_per_row
        since_us = self._waits_since_us.setdefault(info.log_id, self._clock.now_us())
        return Waiting(info.log_id, OffsetRange(start, info.durable_end), info.bytes_per_row, since_us)

    def _start(self, info: LogInfo, name: TableName) -> int:
        """Where the table ends, or `RowsMissing` if the log no longer begins there."""
        stored = pa.ipc.read_schema(pa.py_buffer(info.stored_schema))
        self._tables.ensure(name, stored)
        token = self._tables.token(name, info.log_id)
        end = 0 if token is None else token.end
        if end < info.first_offset:
            raise RowsMissing(str(info.topic), str(name), end, info.first_offset)
        return end

    def _input(self, info: LogInfo, piece: RangeTask) -> RangeInput:
        name, partition = table_of(info.topic)
        return RangeInput(
            str(info.topic),
            info.log_id,
            partition,
            piece.range,
            tuple(_files_of(info, piece.range)),
            info.stored_schema,
            self._source.address,
            self._tables.metadata_json(name),
            self._tables.io_properties(name),
        )

    def _commit(self, infos: dict[str, LogInfo], outputs: Sequence[RangeOutput], report: TickReport) -> None:
        moves: dict[TableName, list[Moved]] = defaultdict(list)
        by_log: dict[str, list[RangeOutput]] = defaultdict(list)
        for output in outputs:
            by_log[output.log_id].append(output)
        for log_id, pieces in by_log.items():
            name, _ = table_of(infos[log_id].topic)
            whole, rest, error = _whole_part(pieces)
            if error is not None:
                report.topics[str(infos[log_id].topic)].error = error
                _log.error("%s: %s", infos[log_id].topic, error)
                self._tables.drop(name, [file for piece in rest for file in piece.files])
            if whole:
                moves[name].append(_joined(whole))
        with ThreadPoolExecutor(COMMITS_AT_ONCE) as pool:
            commits = {name: pool.submit(self._commit_table, name, each) for name, each in moves.items()}
        for name, commit in commits.items():
            try:
                self._note(infos, commit.result(), report)
            except FrazilError as error:
                _log.error("%s: %s", name, error)
                self._tables.forget(name)
                for move in moves[name]:
                    report.topics[str(infos[move.log_id].topic)].error = error.message

    def _commit_table(self, name: TableName, moves: Sequence[Moved]) -> Committed:
        return self._tables.commit(name, moves, str(uuid.uuid4()), self._back_off)

    def _back_off(self, attempt: int) -> None:
        self._wait(min(5.0, 0.05 * 2**attempt))

    def _note(self, infos: dict[str, LogInfo], committed: Committed, report: TickReport) -> None:
        report.commits += 1 if committed.mine else 0
        for move in committed.mine:
            report.rows += move.rows
            self._waits_since_us.pop(move.log_id, None)
            state = report.topics[str(infos[move.log_id].topic)]
            state.table_end = move.end
            state.lag_bytes = (state.log_end - move.end) * infos[move.log_id].bytes_per_row


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


def _joined(outputs: Sequence[RangeOutput]) -> Moved:
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
        ",".join(f"{output.range.start}-{output.range.end}:{output.checksum:08x}" for output in ordered),
    )
