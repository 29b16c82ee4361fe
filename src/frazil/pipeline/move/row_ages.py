"""Since when the oldest row that a table lacks has been in its log: the start of `flush_interval_ms`.

A mover that has seen the log without a row knows that the row came after that, and reads nothing. For a log that is new
to it, as after a restart, it reads the append time of one row, once.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable

import pyarrow as pa

from frazil.core.clock import Clock
from frazil.core.credentials import ClientCredentials
from frazil.core.errors import FrazilError
from frazil.core.offsets import OffsetRange
from frazil.core.rows import APPEND_TIME
from frazil.core.settings import Settings
from frazil.log.info import LogInfo
from frazil.node.tiers.logs import read_anywhere
from frazil.node.tiers.objects import task_objects

LISTINGS_MAX = 64

AppendTime = Callable[[LogInfo, int], int | None]


class RowAges:
    def __init__(self, clock: Clock, append_time_us: AppendTime) -> None:
        self._clock = clock
        self._append_time_us = append_time_us
        self._listed: dict[str, list[tuple[int, int]]] = {}
        self._read: dict[str, tuple[int, int]] = {}

    def listed(self, logs: Iterable[LogInfo]) -> None:
        """Note the current end of each log: rows beyond that come later. Deleted logs are forgotten."""
        now_us, before = self._clock.now_us(), self._listed
        self._listed = {}
        for info in logs:
            ends = self._listed[info.log_id] = before.get(info.log_id, [])
            if ends and ends[-1][0] == info.durable_end:
                ends[-1] = (info.durable_end, now_us)
            else:
                ends.append((info.durable_end, now_us))
            if len(ends) > LISTINGS_MAX:
                del ends[1]  # rows of that time count as a little older than they are
        self._read = {log_id: known for log_id, known in self._read.items() if log_id in self._listed}

    def since_us(self, info: LogInfo, offset: int) -> int:
        """Never later than this mover first saw the row, whatever the owner's clock says."""
        ends = self._listed.get(info.log_id, [])
        at = bisect.bisect_right(ends, offset, key=lambda listing: listing[0]) - 1
        if at >= 0:
            del ends[:at]
            return ends[0][1]
        known = self._read.get(info.log_id)
        if known is None or known[0] != offset:
            first_us = ends[0][1] if ends else self._clock.now_us()
            read_us = self._append_time_us(info, offset)
            known = self._read[info.log_id] = (offset, first_us if read_us is None else min(first_us, read_us))
        return known[1]


def append_time_reader(settings: Settings, owner: Callable[[], tuple[str | None, ClientCredentials]]) -> AppendTime:
    """Read one row, from the files if they are accessible, else from objects, else from the owner at that address.

    Returns None if it is not available.
    """

    def read(info: LogInfo, offset: int) -> int | None:
        stored = pa.ipc.read_schema(pa.py_buffer(info.stored_schema))
        one = OffsetRange(offset, offset + 1)
        objects = task_objects(settings, info.objects, one)
        try:
            address, credentials = owner()
            place = (address, str(info.topic), info.log_id, info.files, one, stored, info.folder)
            rows = next(read_anywhere(*place, credentials, objects))
        except (FrazilError, pa.ArrowException, OSError, StopIteration):
            return None
        return int(rows.column(APPEND_TIME.name).cast(pa.int64())[0].as_py())

    return read
