"""Errors of tables that do not match their logs; `frazil.core.errors` draws the whole tree."""

from __future__ import annotations

from frazil.core.errors.base import FrazilError


class TableRefused(FrazilError):
    """Moving on would lose or duplicate rows, or hide that someone else changed the table."""

    code = "table_refused"


class TableRolledBack(TableRefused):
    code = "table_rolled_back"

    def __init__(self, table: str, log_id: str, has: int, had: int) -> None:
        super().__init__(
            f"{table} was rolled back: it holds log {log_id} up to offset {has}, and once held it up to {had}; "
            "roll it forward again, or accept it with `frazil pipeline accept`",
            table=table,
            log_id=log_id,
            has=has,
            had=had,
        )


class RowsMissing(TableRefused):
    code = "rows_missing"

    def __init__(self, topic: str, table: str, start: int, end: int) -> None:
        super().__init__(
            f"{table} does not hold offsets {start} up to {end} of {topic}, and the log no longer does; "
            f"accept the gap with: frazil pipeline accept {topic}",
            topic=topic,
            table=table,
            start=start,
            end=end,
        )


class DerivedTableBehind(TableRefused):
    """A table beside the topic's own lacks rows that it once had."""

    code = "derived_table_behind"

    def __init__(self, topic: str, table: str, own: str, has: int, had: int) -> None:
        super().__init__(
            f"{table} has rows of {topic} up to offset {has}, and had them up to {had} as {own} recorded: it was "
            f"dropped, replaced or rolled back; restore it, or accept the loss with: frazil pipeline accept {topic}",
            topic=topic,
            table=table,
            has=has,
            had=had,
        )


class TableDamaged(TableRefused):
    """Rows of the table are missing, duplicated or unreadable; nothing is skipped."""

    code = "table_damaged"

    def __init__(self, topic: str, table: str, offset: int, reason: str) -> None:
        what = f"{table} cannot be read at offset {offset} of {topic}: {reason}"
        super().__init__(what, topic=topic, table=table, offset=offset, reason=reason)


class TableAhead(TableRefused):
    """The log ends before its table: rows published since have offsets that the table uses for other rows."""

    code = "table_ahead"

    def __init__(self, topic: str, table: str, table_end: int, log_end: int) -> None:
        if table_end > log_end:
            what = f"{table} has offsets of {topic} up to {table_end}, but the log ends at {log_end}"
        else:
            what = f"the log of {topic} has another row at offset {table_end - 1} than was moved to {table}"
        super().__init__(
            f"{what}: it was cut by a repair, or restored from an older copy; none of it is moved or removed; "
            f"to keep the rows of both, stop the owner of the log and run: frazil log renumber {topic}",
            topic=topic,
            table=table,
            table_end=table_end,
            log_end=log_end,
        )
