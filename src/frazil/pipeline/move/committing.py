"""Commits what the tasks of a tick have written: derived tables first, a topic's own table last."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from frazil.core.clock import Clock
from frazil.core.errors import FrazilError
from frazil.lake.commit.commit import Committed, Moved
from frazil.lake.tables.schema import TableName
from frazil.lake.tables.store import TableStore
from frazil.node.movers.tick_report import Move, TickReport
from frazil.pipeline.move.joining import moves_of, whole_part
from frazil.pipeline.move.moved_topic import MovedTopic
from frazil.pipeline.move.outputs import TableEnd
from frazil.pipeline.move.tasks import RangeOutput

COMMITS_AT_ONCE = 8
FILES_US_MAX = 12 * 3_600_000_000
"""Half the age at which a file in no table may count as an orphan. A mover may be paused for longer."""

Fail = Callable[[MovedTopic, FrazilError], None]
Moves = dict[TableName, list[Moved]]


def is_old(clock: Clock, started_us: int) -> bool:
    """Whether files of a job that began then may count as orphans soon."""
    return clock.now_us() - started_us > FILES_US_MAX


@dataclass(frozen=True, slots=True)
class CommitParts:
    """What commits need of the mover."""

    tables: TableStore
    clock: Clock
    back_off: Callable[[int], None]
    fail: Fail
    moved: Callable[[str], None]
    """Called with the log of each topic that its own table has been moved for."""


class TickCommits:
    """The commits of one tick. `ends` are those that its ranges were planned with, by log."""

    def __init__(
        self,
        parts: CommitParts,
        topics: Mapping[str, MovedTopic],
        ends: Mapping[str, Mapping[TableName, TableEnd]],
        report: TickReport,
        started_us: int,
    ) -> None:
        self._parts = parts
        self._tables = parts.tables
        self._topics = topics
        self._ends = ends
        self._report = report
        self._started_us = started_us
        self._written_us = parts.clock.now_us()

    def commit(self, outputs: Sequence[RangeOutput]) -> None:
        by_log: dict[str, list[RangeOutput]] = defaultdict(list)
        for output in outputs:
            by_log[output.log_id].append(output)
        derived: Moves = defaultdict(list)
        own: Moves = defaultdict(list)
        failed: set[TableName] = set()
        for log_id, pieces in by_log.items():
            failed |= self._joined(self._topics[log_id], pieces, derived, own)
        lacking = self._commit_tables(derived)
        for table, moves in own.items():
            for move in [each for each in moves if each.log_id in lacking]:
                moves.remove(move)
                self._tables.drop(table, move.files)
        self._commit_tables(own)
        for table in failed:
            self._tables.forget(table)  # its credentials may have expired: it is reloaded for the next attempt

    def _joined(self, topic: MovedTopic, pieces: Sequence[RangeOutput], derived: Moves, own: Moves) -> set[TableName]:
        """Add the moves of a topic's tables; returns its tables if a piece failed."""
        whole, rest, error = whole_part(pieces)
        if error is not None:
            self._parts.fail(topic, FrazilError(error))
            for output in rest:
                for written in output.written:
                    self._tables.drop(written.table, written.files)
        if whole:
            ends = self._ends[topic.info.log_id]
            tokens = {table: end.token for table, end in ends.items() if table != topic.table}
            moves = moves_of(whole, topic.partition, tokens)
            for table, move in moves.items():
                recorded = move if topic.derived is None else replace(move, written=topic.derived.written(table))
                if table == topic.table:
                    own[table].append(replace(recorded, derived=self._with_rows(ends, moves, move)))
                elif move.rows:
                    derived[table].append(recorded)
        return set() if error is None else set(topic.tables)

    @staticmethod
    def _with_rows(ends: Mapping[TableName, TableEnd], moves: Mapping[TableName, Moved], own: Moved) -> dict[str, int]:
        """Return the derived tables that got rows: in this tick up to the end of this move, or before a crash.

        One of before a crash may be further on than this move: it is recorded up to here, as the next mover may end
        before it, and rows that follow would not name the table to the one after that.
        """
        before = {table.table: min(end.token, own.end) for table, end in ends.items() if end.token > own.start}
        now = {table.table for table, move in moves.items() if move is not own and move.rows}
        return before | dict.fromkeys(now, own.end)

    def _commit_tables(self, moves: Moves) -> set[str]:
        """Commit each table once, several at a time; returns the logs that a table still lacks."""
        lacking: set[str] = set()
        wanted = {name: each for name, each in moves.items() if each}
        if not wanted:
            return lacking
        with ThreadPoolExecutor(COMMITS_AT_ONCE) as pool:
            commits = {name: pool.submit(self._commit_table, name, each) for name, each in wanted.items()}
        for name, commit in commits.items():
            try:
                committed, committed_us = commit.result()
            except Exception as error:  # noqa: BLE001 - an error of one table does not stop the others
                lacking |= {move.log_id for move in wanted[name]}
                for move in wanted[name]:
                    self._parts.fail(self._topics[move.log_id], self._tables.problem(name, error))
                self._tables.forget(name)  # its credentials may have expired: it is reloaded for the next attempt
                continue
            lacking |= {move.log_id for move in committed.others}
            self._note(name, committed, committed_us)
        return lacking

    def _commit_table(self, name: TableName, moves: Sequence[Moved]) -> tuple[Committed, int]:
        """Return the result and the time of the commit."""

        def wait(attempt: int) -> None:
            self._parts.back_off(attempt)
            if is_old(self._parts.clock, self._started_us):
                raise FrazilError(f"the files for {name} are too old to be committed, and are written again")

        return self._tables.commit(name, moves, str(uuid.uuid4()), wait), self._parts.clock.now_us()

    def _note(self, table: TableName, committed: Committed, committed_us: int) -> None:
        report = self._report
        report.commits += 1 if committed.mine else 0
        for move in committed.mine:
            topic = self._topics[move.log_id]
            if topic.derived is not None and table == topic.derived.errors:
                report.undecoded[topic.name] = move.rows
            if table != topic.table:
                continue  # the topic's progress is that of its own table, which is committed last
            report.rows += move.rows
            self._parts.moved(move.log_id)
            state = report.topics[topic.name]
            state.table_end = move.end
            times_us = (self._started_us, self._written_us, committed_us)
            state.moved = Move(move.start, move.end, *times_us, committed.snapshot_id)
            state.lag_bytes = (state.log_end - move.end) * topic.info.bytes_per_row
        for move in committed.others:
            self._note_refusal(self._topics[move.log_id], table)

    def _note_refusal(self, topic: MovedTopic, table: TableName) -> None:
        """Plan an uncommitted move again, unless the current table refuses the log."""
        try:
            self._tables.token(table, topic.info.log_id, topic.partition)
        except FrazilError as error:
            self._parts.fail(topic, error)
