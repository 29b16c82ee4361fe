"""The tables of each signal: their names, without the namespace, and their columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from frazil.telemetry.schemas.errors import ERRORS, errors_table
from frazil.telemetry.schemas.lifted import Lifted, LiftedFrom, with_lifted
from frazil.telemetry.schemas.logs import LOGS
from frazil.telemetry.schemas.metrics import EXPONENTIAL_HISTOGRAM, GAUGE, HISTOGRAM, METRICS, SUM, SUMMARY
from frazil.telemetry.schemas.traces import TRACES
from frazil.telemetry.signals import Signal

__all__ = ["Lifted", "LiftedFrom", "errors_table", "signal_of_table", "tables_of"]

_ITEMS: Mapping[Signal, Mapping[str, pa.Schema]] = {
    Signal.TRACES: {"traces": TRACES},
    Signal.LOGS: {"logs": LOGS},
    Signal.METRICS: {
        "metrics_gauge": GAUGE,
        "metrics_sum": SUM,
        "metrics_histogram": HISTOGRAM,
        "metrics_exponential_histogram": EXPONENTIAL_HISTOGRAM,
        "metrics_summary": SUMMARY,
    },
}
"""Tables of spans, of log records and of points: they have the columns of lifted attributes."""

_OTHERS: Mapping[Signal, Mapping[str, pa.Schema]] = {Signal.METRICS: {"metrics": METRICS}}


def tables_of(signal: Signal, lifted: Sequence[Lifted] = ()) -> Mapping[str, pa.Schema]:
    """Return the columns of each table of a signal: its own table first, the table of errors last.

    Raise `SchemaMismatch` for lifted attributes whose columns cannot be added.
    """
    items = {name: with_lifted(columns, lifted) for name, columns in _ITEMS[signal].items()}
    return {**_OTHERS.get(signal, {}), **items, errors_table(signal): ERRORS}


_SIGNALS: Mapping[str, Signal] = {table: signal for signal in Signal for table in tables_of(signal)}


def signal_of_table(table: str) -> Signal | None:
    """Return the signal whose requests become the rows of a table of this name; None for any other name."""
    return _SIGNALS.get(table)
