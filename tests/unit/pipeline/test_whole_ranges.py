"""A range is moved as a whole: an owner that ends its stream early, or leaves rows out, loses none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight
import pytest

import frazil
from frazil.core.offsets import OffsetRange
from frazil.core.settings import make_settings
from frazil.log.info import info_of
from frazil.pipeline.move.moved_topic import MovedTopic
from frazil.pipeline.move.outputs import Derived
from frazil.pipeline.move.tasks import LogRange, RangeInput, move_range
from frazil.pipeline.move.telemetry_tables import TelemetryTables
from frazil.telemetry.signals import Signal
from parts.otlp_requests import append, log_records

COUNT = 6
LOGS = "/acme.default/logs"


class Owner(pa.flight.FlightServerBase):
    """Sends these rows, whatever it is asked for."""

    def __init__(self, rows: pa.RecordBatch, sent: list[tuple[int, int]]) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._rows, self._sent = rows, sent

    def do_get(self, _: Any, __: Any) -> pa.flight.RecordBatchStream:
        batches = [self._rows.slice(start, count) for start, count in self._sent]
        return pa.flight.RecordBatchStream(pa.RecordBatchReader.from_batches(self._rows.schema, batches))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[tuple[MovedTopic, pa.RecordBatch]]:
    settings = make_settings({"data": tmp_path / "data"})
    with frazil.open(settings) as storage:
        append(storage, LOGS, Signal.LOGS, *(log_records(number, 1) for number in range(COUNT)))
        topic = storage.topic(LOGS, create=False)
        (rows,) = topic.read_batches()
        yield MovedTopic(info_of(topic.log, None), settings.of_topic(topic.log.name)), rows


@pytest.mark.parametrize(
    ("sent", "came_to", "wanted"),
    [
        ([], 0, COUNT),
        ([(0, 4)], 4, COUNT),
        ([(0, 2), (3, 3)], 3, 2),
        ([(1, 5)], 1, 0),
        ([(0, 3), (2, 4)], 2, 3),
    ],
)
def test_a_range_that_is_not_whole_is_not_moved(
    log: tuple[MovedTopic, pa.RecordBatch], sent: list[tuple[int, int]], came_to: int, wanted: int
) -> None:
    topic, rows = log
    with Owner(rows, sent) as owner:
        output = move_range(_work(topic, owner, TelemetryTables(Signal.LOGS, "acme.default")))
    assert output.written == ()
    assert output.missing == ()
    assert output.error is not None
    assert f"came to offset {came_to} instead of {wanted}" in output.error


def test_a_whole_range_may_come_in_any_batches(log: tuple[MovedTopic, pa.RecordBatch]) -> None:
    topic, rows = log
    with Owner(rows, [(0, 1), (1, 0), (1, 5)]) as owner:
        assert [each.num_rows for each in _range(topic, owner).rows()] == [1, 5]


def _range(topic: MovedTopic, owner: Owner) -> LogRange:
    """As a task has it that cannot see the files."""
    info = topic.info
    wanted = OffsetRange(0, COUNT)
    return LogRange(topic.name, info.log_id, 0, wanted, (), info.stored_schema, f"grpc://127.0.0.1:{owner.port}")


def _work(topic: MovedTopic, owner: Owner, derived: Derived) -> RangeInput:
    return RangeInput(_range(topic, owner), (), 2**20, derived, tuple(derived.tables))
