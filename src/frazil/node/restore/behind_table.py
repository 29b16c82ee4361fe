"""A log one of whose tables has rows that no object has: it goes on behind that table."""

from __future__ import annotations

from dataclasses import replace

from frazil.core.names import TopicName
from frazil.core.rows import stored_schema
from frazil.lake.read.history import TableHistory
from frazil.log.folder.adoption import AdoptedLog
from frazil.log.write.producers import Producers, next_generation
from frazil.node.renumber.agreement import append_time_us
from frazil.telemetry.schemas import signal_of_table, tables_of


def end_in_tables(history: TableHistory) -> int:
    """Return the furthest end of the log in its tables; 0 if none has any of it.

    A new row below it would be refused by the table that is ahead, or taken for one that the table has.
    """
    return history.furthest_end(_beside(history.topic))


def _beside(topic: TopicName) -> list[str]:
    """Return the names of the tables of telemetry beside that of the topic, whether they are there or not."""
    signal = signal_of_table(topic.topic)
    if signal is None or signal.value != topic.topic:
        return []
    return [name for name in tables_of(signal) if name != topic.topic]


def behind_table(history: TableHistory, adopted: AdoptedLog, end: int) -> AdoptedLog:
    """Return where the log goes on, if one of its tables ends at `end`. Which producers sent those rows is not known,
    so all are forgotten: a batch with an old sequence is never treated as new."""
    producers = adopted.producers
    floor = max([producers.floor, *(next_generation(epoch) for epoch in producers.epochs().values())])
    columns = stored_schema(adopted.schema)
    held = history.look()  # nothing of a table of derived rows, which may be without their times
    row_us = 0 if held is None or held[1] < end else append_time_us(history, end - 1, columns)
    last_time_us = max(adopted.last_time_us, row_us)
    return replace(adopted, end=end, producers=Producers(floor=floor), taken=None, last_time_us=last_time_us)
