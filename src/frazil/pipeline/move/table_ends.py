"""How far the tables of a topic are, and whether they continue its log.

The topic's own table also records, for each derived table, the last end at which that table got rows. A derived table
that is behind this record was dropped, replaced or rolled back, and nothing is moved until that is accepted.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from frazil.core.errors import DerivedTableBehind, RowsMissing, TableAhead, TableRefused
from frazil.lake.tables.schema import TableLayout, TableName
from frazil.lake.tables.store import TableStore
from frazil.lake.tables.token import Token
from frazil.pipeline.move.moved_topic import MovedTopic
from frazil.pipeline.move.outputs import TableEnd

RowOf = Callable[[MovedTopic, int], pa.RecordBatch]
LayoutOf = Callable[[MovedTopic], TableLayout | None]


class TableEnds:
    """State that is kept between ticks only saves queries: the pinned commit refuses anything based on stale state."""

    def __init__(self, tables: TableStore, row_of: RowOf, result_of: LayoutOf, back_off: Callable[[int], None]) -> None:
        """`row_of` reads a row of a log; `result_of` returns the layout of a table of results, None for plain rows."""
        self._tables = tables
        self._row_of = row_of
        self._result_of = result_of
        self._back_off = back_off
        self._continues: dict[tuple[str, TableName], tuple[str, str]] = {}
        """By log and table: the log's opening, and the last move that its rows are known to continue."""

    def of(self, topic: MovedTopic) -> dict[TableName, TableEnd]:
        """Return the end of each table; raises `TableRefused` with the reason why nothing may be moved."""
        own = self._checked(topic, topic.table, lambda: self._own_end(topic))
        ends = {topic.table: TableEnd(own, own)}
        if not topic.derived_tables:
            return ends
        recorded = self._tables.derived_ends(topic.table, topic.info.log_id)
        for table in topic.derived_tables:
            ends[table] = self._derived_end(topic, table, own, recorded.get(table.table, 0))
        return ends

    def create(self, topic: MovedTopic, table: TableName) -> int:
        """Create a derived table, or find it; returns its token's end."""
        return self._checked(topic, table, lambda: self._derived_token(topic, table))

    def forget(self, topic: MovedTopic, table: TableName) -> None:
        self._continues.pop((topic.info.log_id, table), None)

    def _derived_end(self, topic: MovedTopic, table: TableName, own: int, recorded: int) -> TableEnd:
        """Tables that never got rows of the log are not looked for: tasks say when there are some."""
        if not recorded and not self._tables.remembers(table):
            return TableEnd(0, own)

        def token() -> int:
            end = self._derived_token(topic, table)
            if end < recorded:
                raise DerivedTableBehind(topic.name, str(table), str(topic.table), end, recorded)
            return end

        end = self._checked(topic, table, token)
        return TableEnd(end, max(end, own))

    def _checked(self, topic: MovedTopic, table: TableName, ask: Callable[[], int]) -> int:
        """Reload a table before refusing it, as it may have been dropped, renamed or accepted."""
        if self._tables.remembers(table):
            try:
                return ask()
            except TableRefused:
                self._tables.forget(table)
        try:
            return ask()
        except Exception:
            self._tables.forget(table)
            self.forget(topic, table)
            raise

    def _own_end(self, topic: MovedTopic) -> int:
        """Raises `RowsMissing` if the log begins later, `TableAhead` if the log is behind."""
        info, table = topic.info, topic.table
        layout = self._result_of(topic)
        if layout is None:
            self._tables.ensure(table, topic.stored, topic.rules.partitioning)
        else:
            self._tables.ensure_result(table, layout)
        token = self._token(topic, table)
        if token.end < info.held_from:
            info.check_objects()
            raise RowsMissing(topic.name, str(table), token.end, info.held_from)
        return token.end

    def _derived_token(self, topic: MovedTopic, table: TableName) -> int:
        self._tables.ensure_result(table, topic.derived_tables[table])
        return self._token(topic, table).end

    def _token(self, topic: MovedTopic, table: TableName) -> Token:
        info = topic.info
        if info.former:
            former = info.former[-1]
            self._tables.hand_over(
                table, former.log_id, former.table_end, info.log_id, self._back_off, is_derived=table != topic.table
            )
        token = self._tables.token(table, info.log_id, topic.partition) or Token(0, "")
        self._check_continues(topic, table, token)
        return token

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
        if end <= info.held_from or (info.opened and self._continues.get(key) == known):
            return
        row = self._row_of(topic, end - 1)
        if not self._tables.is_last_row(table, info.log_id, topic.partition, row):
            raise TableAhead(topic.name, str(table), end, info.durable_end)
        self._continues[key] = known
