"""A log whose table has rows that no object has: it goes on behind its table."""

from __future__ import annotations

from dataclasses import replace

from frazil.core.errors import TableRefused
from frazil.core.rows import stored_schema
from frazil.lake.read.history import TableHistory
from frazil.log.folder.adoption import AdoptedLog
from frazil.log.write.producers import Producers, next_generation
from frazil.node.renumber.agreement import append_time_us


def end_in_table(history: TableHistory) -> int:
    """Return the end of the log's rows in its table; 0 if it has none."""
    try:
        looked = history.look()
    except TableRefused:
        if end := history.statement_end():
            return end
        raise
    return 0 if looked is None else looked[1]


def behind_table(history: TableHistory, adopted: AdoptedLog, end: int) -> AdoptedLog:
    """Return where the log goes on, if its table ends at `end`. Which producers sent those rows is not known, so all
    are forgotten: a batch with an old sequence is never treated as new."""
    producers = adopted.producers
    floor = max([producers.floor, *(next_generation(epoch) for epoch in producers.epochs().values())])
    columns = stored_schema(adopted.schema)
    row_us = 0 if history.statement_end() else append_time_us(history, end - 1, columns)
    last_time_us = max(adopted.last_time_us, row_us)
    return replace(adopted, end=end, producers=Producers(floor=floor), taken=None, last_time_us=last_time_us)
